"""Slices into lanes in which each of two either holds the other or does not meet it, as a track of Perfetto must be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dptune.measure.intervals import Ints


class Edge(NamedTuple):
    """Start or end of slice number `at`, in lane `lane`."""

    lane: int
    at: int
    ends: bool


def edges(start_ns: Ints, end_ns: Ints) -> Iterator[Edge]:
    """Starts and ends, in each lane in an order in which an end closes the slice that was opened last.

    A slice goes to the first lane that it fits into. Slices of one extent nest in their order; one without length opens
    and closes before the next slice opens.
    """
    starts, ends = start_ns.tolist(), end_ns.tolist()
    open_slices: list[list[int]] = []
    for at in np.lexsort((-end_ns, start_ns)).tolist():
        for lane, opened in enumerate(open_slices):
            yield from _closed(lane, opened, ends, starts[at])
        lane = _fitting(open_slices, ends, ends[at])
        if lane == len(open_slices):
            open_slices.append([])
        open_slices[lane].append(at)
        yield Edge(lane, at, False)
    for lane, opened in enumerate(open_slices):
        yield from _closed(lane, opened, ends, None)


def _closed(lane: int, opened: list[int], ends: Sequence[int], until_ns: int | None) -> Iterator[Edge]:
    """Ends of the slices of a lane that are over by a moment (None: of all)."""
    while opened and (until_ns is None or ends[opened[-1]] <= until_ns):
        yield Edge(lane, opened.pop(), True)


def _fitting(open_slices: Sequence[Sequence[int]], ends: Sequence[int], end_ns: int) -> int:
    """The first lane whose innermost open slice lasts to `end_ns`, or that has none; else a new one."""
    for lane, opened in enumerate(open_slices):
        if not opened or end_ns <= ends[opened[-1]]:
            return lane
    return len(open_slices)
