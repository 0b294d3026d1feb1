"""Spans of time of a replay: pairs of begin and end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def joined(ran: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The begins and the ends of these intervals, those that overlap as one."""
    begins: list[float] = []
    ends: list[float] = []
    for begin, end in sorted(ran):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)
    return begins, ends


def held(begins: Sequence[float], ends: Sequence[float], first: float, last: float) -> float:
    """How much of the time from `first` to `last` these intervals take, which do not overlap."""
    places = range(bisect_right(ends, first), bisect_left(begins, last))
    return sum(min(ends[place], last) - max(begins[place], first) for place in places)
