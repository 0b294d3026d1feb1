"""Repetition in a sequence of names: how alike its segments are, and what cuts it into the most alike ones.

A step holds the same operations as the next, in nearly the same order, but a name that comes once in a step is rare
among names that come once in a layer. So every name that comes evenly is tried as the mark between segments, then every
pair of names, and the segments are compared by how often each holds each name: insertions and another order of a few
cost little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptune.measure.intervals import Ints

Floats = NDArray[np.float64]
LEAST_ALIKE = 0.9  # of real steps: 0.95 and more; of layers, requests or warm-up taken for steps: see the tests
LEAST = 3  # segments that are alike, of which two could be so by chance
_LEAST_IN_ORDER = (
    0.7  # alike by runs of four names: of real steps 0.97 and more; long shuffled segments hold equal names
)
_AS_GOOD = 0.02  # less alike than the best
_UNEVEN = 0.15  # what the segments' lengths in operations differ by from their mean, as a share of all
_ENDS = 1.25  # of the longest segment: what may lie before the first mark and after the last
_TRIED = 12  # evenly spread marks that are compared
_CELLS = 4_000_000  # of a table segments x names: more segments than that are no steps


def similarity(codes: Ints, cuts: Ints) -> float:
    """How alike the segments between neighbouring cuts are: what each shares with the typical one, of both; 0 to 1.

    `codes` number the names from 0 on; the typical segment holds each name as often as the median of them does.
    """
    counts = segments(codes, cuts)
    typical = np.median(counts, axis=0)
    return float(np.minimum(counts, typical).sum() / max(np.maximum(counts, typical).sum(), 1))


def segments(codes: Ints, cuts: Ints) -> Ints:
    """How often each segment holds each name: segments x names."""
    names = int(codes.max(initial=0)) + 1
    at = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
    flat = np.bincount(at * names + codes[cuts[0] : cuts[-1]], minlength=(len(cuts) - 1) * names)
    return flat.reshape(-1, names).astype(np.int64)


def alike(counts: Ints, typical: Floats) -> Floats:
    """Of each row of counts, how much it shares with the typical one; 0 to 1."""
    return np.asarray(
        np.minimum(counts, typical).sum(axis=-1) / np.maximum(np.maximum(counts, typical).sum(axis=-1), 1)
    )


def period(codes: Ints) -> Ints | None:
    """Where the name comes that cuts the sequence into the most alike segments; None where it does not repeat.

    Of cuts that are nearly as good the closest ones: two steps repeat as well as one, and better where something small
    is done in every second. The operations before the first and after the last cut are at most as many as a segment
    has, or else only a part of the sequence repeats.
    """
    most = _CELLS // (int(codes.max(initial=0)) + 1)
    for marks in (codes, _pairs(codes)):
        likeness = [(similarity(codes, places), places) for places in _even(marks, most)]
        best = max((score for score, _ in likeness), default=0.0)
        if best >= LEAST_ALIKE:
            break
    else:
        return None
    good = [places for score, places in likeness if score >= max(best - _AS_GOOD, LEAST_ALIKE)]
    places = max(good, key=len)
    middle = len(places) // 2
    in_order = similarity(_runs(codes), places[max(middle - 2, 0) : middle + 2])
    return places if in_order >= _LEAST_IN_ORDER else None


def _pairs(codes: Ints) -> Ints:
    """A number for each name together with the one before it: small models have no name that comes once in a step."""
    if not len(codes):
        return codes
    before = np.concatenate(([-1], codes[:-1]))
    _, pairs = np.unique((before + 1) * (int(codes.max()) + 1) + codes, return_inverse=True)
    return pairs.astype(np.int64)


def _runs(codes: Ints) -> Ints:
    """A number for each name together with the three before it."""
    runs = codes.copy()
    for back in range(1, 4):
        runs[back:] = runs[back:] * 1_000_003 + codes[:-back]  # wraps around: a hash
    return np.unique(runs, return_inverse=True)[1].astype(np.int64)


def _even(marks: Ints, most: int) -> list[Ints]:
    """The places of marks that come at even distances through the whole sequence, one mark for each number of them."""
    if not len(marks):
        return []
    order = np.argsort(marks, kind="stable")
    often = np.bincount(marks)
    first = np.cumsum(often) - often
    last = first + often - 1
    within = np.diff(marks[order], prepend=-1) == 0
    distance = np.where(within, np.diff(order, prepend=0), 0)
    span = np.maximum(order[last] - order[first], 1)
    usual = np.repeat(span / np.maximum(often - 1, 1), often)
    uneven = np.add.reduceat(np.where(within, np.abs(distance - usual), 0.0), first) / span
    ends = np.maximum(order[first], len(marks) - order[last])
    through = (often >= LEAST) & (often <= most) & (ends <= _ENDS * np.maximum.reduceat(distance, first))
    candidates = np.flatnonzero(through & (uneven <= _UNEVEN))
    candidates = candidates[np.lexsort((uneven[candidates], often[candidates]))]
    _, indices = np.unique(often[candidates], return_index=True)
    chosen = candidates[indices]
    chosen = chosen[np.lexsort((-often[chosen], uneven[chosen].round(2)))][:_TRIED]
    return [order[first[mark] : first[mark] + often[mark]] for mark in chosen.tolist()]
