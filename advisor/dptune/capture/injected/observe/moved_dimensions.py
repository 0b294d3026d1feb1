"""Which dimension a view moves without moving its values, from the shapes before and after alone.

A view keeps the order of values in memory. It splits dimensions and joins neighbours, so both shapes consist of groups
of the same number of values: (B, T, C) and (B, C, T) of B, and of T x C. A dimension is moved if its size is in both
shapes of a group, at other places, and the rest of the group is the same, split or joined:

    (T, C) -> (C, T)        a transpose
    (T, H*D) -> (H, T, D)   heads before times
    (H, T, D) -> (T, H*D)   heads joined, without the transpose before
    (C, H, W) -> (H*W, C)   a map as a row of pixels; and back

Sizes can agree by chance. What regroups on purpose, as `k` rows that become a single one, splits and joins neighbours:
the strides of both shapes divide each other. Of such views, the forms that regrouping has are left out: 32 channels of
8 x 8 in 8 groups, and 4 texts of 32 words in rows of 4 words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Moved(NamedTuple):
    """A group of dimensions in which one or more are moved."""

    given: tuple[int, ...]  # its sizes before
    made: tuple[int, ...]  # and after
    dimensions: tuple[int, ...]  # its dimensions after
    leads: bool  # it has the first dimension of the tensor
    nested: bool  # the strides divide each other
    instead: str  # the calls that move the values as well

    @property
    def certain(self) -> bool:
        """Nobody regroups to these sizes: the strides do not divide each other, or heads are split or joined."""
        short, long = sorted((self.given, self.made), key=len)
        return not self.nested or (len(short), len(long), long[1]) == (2, 3, short[0])


class _Group(NamedTuple):
    given: list[int]  # dimensions
    made: list[int]
    before: list[int]  # their sizes
    after: list[int]


class _Order(NamedTuple):
    split: list[int]  # sizes before, with what is split afterwards
    order: list[int]  # of these, which is where afterwards
    nobody_regroups: bool


def moved(given: Sequence[int], made: Sequence[int]) -> Moved | None:
    """The first such group; dimensions of size 1 belong to none."""
    for group in _groups(given, made):
        found = _order(group.before, group.after)
        nested = _nested(group.before, group.after)
        if found is not None and (found.nobody_regroups or not nested):
            leads = math.prod(given[: group.given[0]]) == 1
            instead = _instead(given, made, group, found)
            return Moved(tuple(group.before), tuple(group.after), tuple(group.made), leads, nested, instead)
    return None


def _groups(given: Sequence[int], made: Sequence[int]) -> Iterator[_Group]:
    """The smallest groups of neighbours with the same number of values in both shapes."""
    left, right = ([at for at, size in enumerate(shape) if size > 1] for shape in (given, made))
    while left and right:
        group = _Group([left[0]], [right[0]], [given[left.pop(0)]], [made[right.pop(0)]])
        while math.prod(group.before) != math.prod(group.after):
            shorter = math.prod(group.before) < math.prod(group.after)
            source = left if shorter else right
            if not source:
                return
            (group.given if shorter else group.made).append(source[0])
            (group.before if shorter else group.after).append((given if shorter else made)[source.pop(0)])
        yield group


def _order(before: list[int], after: list[int]) -> _Order | None:
    if sorted(before) == sorted(after):
        left = list(range(len(before)))
        order = [left.pop(next(at for at, place in enumerate(left) if before[place] == size)) for size in after]
        return _Order(before, order, True) if before != after else None
    for place, size in enumerate(before):
        rest = before[:place] + before[place + 1 :]
        for target in (at for at, length in enumerate(after) if length == size):
            others = after[:target] + after[target + 1 :]
            if len(rest) == 1 < len(others):  # split
                at = 0 if place == 0 else len(others)
                return _Order([*others[:at], size, *others[at:]], _inserted(len(others), at, target), True)
            if len(others) == 1 < len(rest):  # joined
                to = 0 if target == 0 else len(rest)
                heads = place == 1 and len(before) == 3 and size % before[0] == 0
                return _Order(before, _inserted(len(rest), place, to), heads)
    return None


def _inserted(others: int, at: int, to: int) -> list[int]:
    order = [place + (place >= at) for place in range(others)]
    order.insert(to, at)
    return order


def _nested(before: Sequence[int], after: Sequence[int]) -> bool:
    strides = {math.prod(sizes[at:]) for sizes in (before, after) for at in range(len(sizes))}
    return all(larger % smaller == 0 for smaller, larger in pairwise(sorted(strides)))


def _instead(given: Sequence[int], made: Sequence[int], group: _Group, found: _Order) -> str:
    """`.reshape(8, 30, 4, 16).transpose(1, 2)`: split, move and join."""
    start, stop = group.given[0], group.given[-1] + 1
    shape = [*given[:start], *found.split, *given[stop:]]
    order = list(range(len(shape)))
    order[start : start + len(found.order)] = [start + place for place in found.order]
    swapped = [place for place, source in enumerate(order) if place != source]
    calls = "" if shape == list(given) else f".reshape({_listed(shape)})"
    calls += f".transpose({_listed(swapped)})" if len(swapped) == 2 else f".permute({_listed(order)})"
    return calls if [shape[source] for source in order] == list(made) else f"{calls}.reshape({_listed(made)})"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
