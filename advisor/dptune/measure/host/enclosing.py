"""Which range of its thread something lies in: the innermost that encloses it.

Ranges of one thread mostly nest; where some only overlap, the one that began last of those that reach far enough is
the innermost. The search climbs blocks of 2, 4, 8, ... ranges by the latest end in each, so that it takes no more
than about 2 log2(n) rounds of numpy, however the ranges lie. What lies in no range is not searched for: no range of its
thread that began before it reaches far enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dptune.measure.intervals import Ints, Mask
from dptune.trace.columns import Columns

NOWHERE = -1  # in no range


@dataclass(frozen=True, eq=False)
class Ranges:
    """Ranges in order of thread, start and, the longer first, length. All arrays are int64, times in nanoseconds.

    `index` is where each range stood in what `of` was given; `thread` holds each thread once, ascending, and `first`
    where its ranges begin; `starts` holds each start once, and `key` what the ranges are sorted by: their thread and
    the place of their start. `latest[n]` is the latest end in each block of 2**n ranges; `until`, by range, the latest
    of its end and those before it on its thread.
    """

    index: Ints
    thread: Ints
    first: Ints
    starts: Ints
    key: Ints
    latest: tuple[Ints, ...]
    until: Ints

    @classmethod
    def of(cls, thread: Ints, start_ns: Ints, end_ns: Ints) -> Ranges:
        """Sort ranges [start, end), each on its thread, in any order."""
        if not len(thread):
            return _NONE
        index = np.lexsort((-end_ns, start_ns, thread))
        threads = thread[index]
        begins = np.append(True, threads[1:] != threads[:-1])
        first, number = np.flatnonzero(begins), np.cumsum(begins) - 1
        starts, place = np.unique(start_ns[index], return_inverse=True)
        latest = [end_ns[index].astype(np.int64)]
        while len(latest[-1]) > 1:
            even = latest[-1][: len(latest[-1]) // 2 * 2]
            latest.append(np.maximum(even[::2], even[1::2]))
        until = np.empty_like(latest[0])
        for begin, end in pairwise([*first.tolist(), len(until)]):
            np.maximum.accumulate(latest[0][begin:end], out=until[begin:end])
        return cls(
            index.astype(np.int64),
            threads[first].astype(np.int64),
            first.astype(np.int64),
            starts,
            number * (len(starts) + 1) + place + 1,
            tuple(latest),
            until,
        )

    @classmethod
    def of_rows(cls, columns: Columns, rows: Ints) -> Ranges:
        """The events of some rows, as ranges of the threads that they lie on."""
        return cls.of(columns.thread[rows], columns.ts_ns[rows], columns.ends(rows))

    def around(self, thread: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
        """For each [start, end) on a thread the index of the innermost range around it, NOWHERE where there is none."""
        if not len(self.index) or not len(thread):
            return np.full(len(thread), NOWHERE, dtype=np.int64)
        before, first, there = self._before(thread, start_ns)
        return self._last_reaching(before, first, np.asarray(end_ns, dtype=np.int64), there)

    def hold(self, thread: Ints, time_ns: Ints) -> Mask:
        """Which moments lie in any range of their thread."""
        if not len(self.index) or not len(thread):
            return np.zeros(len(thread), dtype=np.bool_)
        before, first, there = self._before(thread, time_ns)
        return there & (before > first) & (self.until[before - 1] > time_ns)

    def _before(self, thread: Ints, start_ns: Ints) -> tuple[Ints, Ints, Mask]:
        """For each moment on a thread, behind how many ranges those lie that begin later, the first place of its
        thread, and whether there is any range on that.
        """
        number = np.minimum(np.searchsorted(self.thread, thread), len(self.thread) - 1)
        wanted = number * (len(self.starts) + 1) + np.searchsorted(self.starts, start_ns, side="right")
        return np.searchsorted(self.key, wanted, side="right"), self.first[number], self.thread[number] == thread

    def at(self, thread: Ints, time_ns: Ints) -> Ints:
        """For each moment on a thread the index of the innermost range around it, NOWHERE where there is none."""
        return self.around(thread, time_ns, time_ns + 1)

    def parents(self) -> Ints:
        """For each range, as given to `of`, the index of the innermost other range around it, else NOWHERE.

        Of two ranges with the same start and end, the first given is around the other.
        """
        count = np.diff(np.append(self.first, len(self.index)))
        ends = self.latest[0] if len(self.index) else self.index
        first, anywhere = np.repeat(self.first, count), np.ones(len(ends), dtype=np.bool_)
        found = self._last_reaching(np.arange(len(self.index)), first, ends, anywhere)
        parents = np.empty(len(self.index), dtype=np.int64)
        parents[self.index] = found
        return parents

    def _last_reaching(self, before: Ints, first: Ints, end_ns: Ints, asked: Mask) -> Ints:
        """The index of the last range from place `first` on and below place `before` that ends at `end_ns` or later;
        NOWHERE where there is none, or it is not asked for.
        """
        found = np.full(len(before), NOWHERE, dtype=np.int64)
        if not len(found):
            return found
        at = np.flatnonzero(asked & (before > first) & (self.until[before - 1] >= end_ns))
        block = before[at].astype(np.int64)
        reached: list[tuple[Ints, Ints]] = []
        for latest in self.latest:
            odd = (block & 1) == 1
            below = np.where(odd, block - 1, 0)
            there = odd & (latest[below] >= end_ns[at])
            reached.append((at[there], below[there]))
            at, block = at[~there], block[~there] >> 1
        at, block = reached[-1]
        for latest, (more, of_more) in zip(self.latest[-2::-1], reached[-2::-1], strict=True):
            right = 2 * block + 1
            block = np.where(latest[right] >= end_ns[at], right, right - 1)
            at, block = np.concatenate((at, more)), np.concatenate((block, of_more))
        found[at] = self.index[block]
        return found


_NO_INTS = np.empty(0, dtype=np.int64)
_NONE = Ranges(_NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, (_NO_INTS,), _NO_INTS)


def holding(columns: Columns, rows: Ints, time_ns: Ints) -> Ints:
    """Those of the rows that any of the moments lies in, on whatever thread; the others are around none of them."""
    moments = np.sort(time_ns)
    before = np.searchsorted(moments, columns.ts_ns[rows], side="left")
    return np.asarray(rows[np.searchsorted(moments, columns.ends(rows), side="left") > before], dtype=np.int64)
