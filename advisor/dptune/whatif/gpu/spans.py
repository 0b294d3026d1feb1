"""Spans of time of a replay, float64."""

from __future__ import annotations

import numpy as np

from dptune.whatif.gpu.columns import Floats


def joined(begin: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The begins and the ends of these intervals in order, those that overlap as one."""
    order = np.lexsort((end, begin))
    begin, latest = begin[order], np.maximum.accumulate(end[order])
    apart = begin[1:] > latest[:-1]
    return begin[np.append(True, apart)[: len(begin)]], latest[np.append(apart, True)[: len(begin)]]


def held(begins: Floats, ends: Floats, first: float, last: float) -> float:
    """How much of the time from `first` to `last` these intervals take, which do not overlap."""
    inside = slice(np.searchsorted(ends, first, side="right"), np.searchsorted(begins, last))
    return float(sum((np.minimum(ends[inside], last) - np.maximum(begins[inside], first)).tolist()))
