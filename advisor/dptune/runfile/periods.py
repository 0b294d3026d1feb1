"""At which distances some steps of a window come: periods may lie over one another, and one step may be missing.

Periods are believed where they describe which steps are meant in fewer bits than a list of them does (minimum
description length; Rissanen 1978): by chance a description that is shorter by b bits has a probability of 2 ** -b at
most.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import comb, log2

LEAST = 3  # steps at one distance
_SURE_BITS = 4.3  # of a description that is shorter by chance in 5 of 100 windows
_MISSED = 1  # steps that may be missing at one distance
_MISSES = 0.25  # the part of periods that miss one, as a guess


@dataclass(frozen=True)
class Period:
    """Every `every`-th step from `first` on; `steps` are those of them that are meant."""

    every: int
    first: int
    steps: tuple[int, ...]


def periods(meant: Collection[int], steps: int) -> list[Period]:
    """The periods of the meant steps of a window of so many, shortest description first; none where none is sure."""
    found: list[Period] = []
    left, free = set(meant), set(range(steps))
    whole_bits = bits = _list_bits(len(free), len(left))
    cost_bits = 0.0
    while True:
        best = min(_candidates(set(meant), left, free, steps), key=lambda candidate: candidate[0], default=None)
        if best is None or cost_bits + best[0] >= bits:
            break
        period, cost_bits = best[2], cost_bits + best[1]
        found.append(period)
        covered = set(range(period.first, steps, period.every))
        left, free = left - covered, free - covered
        bits = cost_bits + _list_bits(len(free), len(left))
    return found if whole_bits - bits >= _SURE_BITS else []


def _candidates(meant: set[int], left: set[int], free: set[int], steps: int) -> list[tuple[float, float, Period]]:
    """Of each period: bits with what it leaves, bits of itself, and it."""
    longest = steps // LEAST
    named_bits = log2(max(1, sum(range(2, longest + 1))))
    found = []
    for every in range(2, longest + 1):
        for first in range(every):
            due = range(first, steps, every)
            hit = [at for at in due if at in meant]
            missed = len(due) - len(hit)
            if len(hit) < LEAST or missed > _MISSED or len(left.intersection(hit)) < LEAST - 1:
                continue
            own_bits = named_bits + (log2(len(due) / _MISSES) if missed else -log2(1 - _MISSES))
            rest = _list_bits(len(free.difference(due)), len(left.difference(due)))
            found.append((own_bits + rest, own_bits, Period(every, first, tuple(hit))))
    return found


def _list_bits(steps: int, meant: int) -> float:
    return log2(comb(steps, meant))
