"""Sets of time: unions, intersections and differences of intervals, in exact int64 nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_NOTHING = np.empty(0, dtype=np.int64)
_ZERO = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Intervals:
    """Disjoint half-open intervals [start, end) in ascending order, with time between each and the next.

    `start_ns` and `end_ns` are int64 arrays of equal length.
    """

    start_ns: Ints
    end_ns: Ints

    @classmethod
    def union(cls, start_ns: Ints, end_ns: Ints) -> Intervals:
        """The union of any intervals, in any order; those without length add nothing."""
        lasting = end_ns > start_ns
        if not lasting.all():
            start_ns, end_ns = start_ns[lasting], end_ns[lasting]
        if len(start_ns) < 2:
            return cls(start_ns, end_ns) if len(start_ns) else NOTHING
        if (start_ns[1:] < start_ns[:-1]).any():  # mostly they are sorted already
            order = np.argsort(start_ns, kind="stable")
            start_ns, end_ns = start_ns[order], end_ns[order]
        end_ns = np.maximum.accumulate(end_ns)
        edges = np.ones(len(start_ns) + 1, dtype=np.bool_)
        np.greater(start_ns[1:], end_ns[:-1], out=edges[1:-1])
        return cls(start_ns[edges[:-1]], end_ns[edges[1:]])

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        """How long the set is."""
        return int((self.end_ns - self.start_ns).sum())

    def __or__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self if len(self) else other
        return Intervals.union(
            np.concatenate((self.start_ns, other.start_ns)), np.concatenate((self.end_ns, other.end_ns))
        )

    def __and__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return NOTHING
        cuts = self._cuts(other)
        return _pieces(cuts, self._covers(cuts) & other._covers(cuts))

    def __sub__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self
        cuts = self._cuts(other)
        return _pieces(cuts, self._covers(cuts) & ~other._covers(cuts))

    def within(self, start_ns: int, end_ns: int) -> Intervals:
        """The part of the set inside one interval."""
        first = int(np.searchsorted(self.end_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        if first >= last:
            return NOTHING
        return Intervals(np.maximum(self.start_ns[first:last], start_ns), np.minimum(self.end_ns[first:last], end_ns))

    def hold(self, times_ns: Ints) -> Mask:
        """Which times lie in the set."""
        if not len(self):
            return np.zeros(len(times_ns), dtype=np.bool_)
        at = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        return np.asarray((at >= 0) & (times_ns < self.end_ns[at]), dtype=np.bool_)

    def before(self, times_ns: Ints) -> Ints:
        """How much of the set lies before each time, int64 nanoseconds."""
        if not len(self):
            return np.zeros(len(times_ns), dtype=np.int64)
        whole = self._summed
        at = np.searchsorted(self.start_ns, times_ns, side="right")
        last = np.maximum(at - 1, 0)
        beyond = np.where(at > 0, np.maximum(self.end_ns[last] - times_ns, 0), 0)
        return np.asarray(whole[at] - beyond, dtype=np.int64)

    @cached_property
    def _summed(self) -> Ints:
        """How long the first n intervals are together, for n from 0 on."""
        return np.concatenate((_ZERO, np.cumsum(self.end_ns - self.start_ns)))

    def lengths(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """How much of the set lies in each of the intervals [start, end), int64 nanoseconds."""
        if not len(self):
            return np.zeros(len(start_ns), dtype=np.int64)
        return self.before(end_ns) - self.before(start_ns)

    def earlier(self, by_ns: int) -> Intervals:
        """The set moved to earlier times."""
        return Intervals(self.start_ns - by_ns, self.end_ns - by_ns)

    def _cuts(self, other: Intervals) -> Ints:
        """Where either set begins or ends, ascending: four runs that are sorted already, which a stable sort merges."""
        cuts = np.concatenate((self.start_ns, self.end_ns, other.start_ns, other.end_ns))
        cuts.sort(kind="stable")
        return cuts

    def _covers(self, cuts: Ints) -> Mask:
        """For each piece between neighbouring cuts, whether it lies in the set."""
        return self.hold(cuts[:-1])


NOTHING = Intervals(_NOTHING, _NOTHING)


def interval(start_ns: int, end_ns: int) -> Intervals:
    """The set of one interval."""
    return Intervals.union(np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64))


def first_begun(start_ns: Ints, end_ns: Ints, group: Ints | None = None) -> tuple[Ints, Ints]:
    """Start and end of any intervals, each without the time in which one that began before it lasts; in their order.

    What is left is disjoint and has the same union. Of those that begin at once the first given is the first begun.
    With `group`, a number from 0 for each, this holds among those of one group.
    """
    group = np.zeros(len(start_ns), dtype=np.int64) if group is None else group
    order = np.lexsort((start_ns, group))
    start, group = start_ns[order], group[order]
    # Group by group the latest end so far: ends as numbers in order, those of later groups above those of earlier ones.
    ends, rank = np.unique(end_ns[order], return_inverse=True)
    latest = ends[np.maximum.accumulate(group * len(ends) + rank) - group * len(ends)]
    start[1:] = np.where(group[1:] == group[:-1], np.maximum(start[1:], latest[:-1]), start[1:])
    since = np.empty_like(start)
    since[order] = start
    return since, np.maximum(end_ns, since)


def distinct(values: Ints) -> Ints:
    """The values that differ, ascending: of many that do, in a fiftieth of the time of np.unique, which hashes them."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _pieces(cuts: Ints, wanted: Mask) -> Intervals:
    """Those between neighbouring cuts that are wanted; of cuts that are equal the last one counts."""
    inside = np.zeros(len(wanted) + 2, dtype=np.bool_)
    inside[1:-1] = wanted
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    return Intervals(cuts[edges[::2]], cuts[edges[1::2]])
