"""When the items of a program come to pass: by their edges, and by what collectives that share links leave each other.

Transfers that start while others run take longer, and then others run beside them: such a program is replayed until
that changes little.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dptune.measure.intervals import Ints, Mask
from dptune.whatif.gpu.columns import Columns, Floats
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.sharing import Transfer, durations

# Of a collective's duration: what rounding makes of it, and how near two replays are to each other that end the search
# for when collectives share links; most replays of it, and how many go all of the way.
_ROUNDING, _NEAR, _REPLAYS, _FREE = 1e-6, 0.01, 12, 2


@dataclass(frozen=True, eq=False)
class Replay:
    """The items and edges of a program, and its transfers that may share links: fields as those of `Program`.

    It is of all programs whose edges differ in their times only.
    """

    columns: Columns
    recorded_ns: Sequence[int]
    fixed: AbstractSet[int]
    transfers: Sequence[Transfer]
    slowed: float

    def times(self, lag_ns: Floats) -> list[float]:
        """When each item comes to pass, if edges take these times."""
        alone = self._in_order(lag_ns)
        return self._sharing_links(lag_ns, alone) if self.transfers else alone

    def _in_order(self, lag_ns: Floats, known: Sequence[float] = ()) -> list[float]:
        """The same without what transfers leave each other; `known`: of the first items."""
        times: list[float] = self._until_ns.tolist()
        times[: len(known)] = known
        places, items, rows = self._waits
        first = int(np.searchsorted(places, len(known)))
        # Numbers of arrays are made one by one in the loop: lists of them would take five times the memory.
        waits = places[first:].data, items[first:].data, lag_ns[rows[first:]].data
        for place, item, lag in zip(*waits, strict=True):
            moment = times[item] + lag
            if moment > times[place]:
                times[place] = moment
        return times

    @cached_property
    def _is_free(self) -> Mask:
        """By item whether it waits for others. Those that are fixed do not: they come to pass as recorded."""
        waits = np.zeros(self.columns.count, dtype=np.bool_)
        waits[self.columns.place] = True
        waits[[*self.fixed]] = False
        return waits

    @cached_property
    def _until_ns(self) -> Floats:
        """By item when it comes to pass before anything that it waits for has."""
        return np.where(self._is_free, -np.inf, np.array(self.recorded_ns, dtype=np.float64))

    @cached_property
    def _waits(self) -> tuple[Ints, Ints, Ints]:
        """By edge of an item that waits: that item, the earlier one that it waits for, and the number of the edge."""
        rows = np.flatnonzero(self._is_free[self.columns.place])
        places, items = self.columns.place[rows], self.columns.item[rows]
        assert (items < places).all()
        return places, items, rows

    def _sharing_links(self, lag_ns: Floats, times: list[float]) -> list[float]:
        """The same where transfers take as long as those beside them let them.

        Each replay moves others beside each other, so after the first ones durations go half of the way, and none takes
        longer than a recorded one did beside others, or than beside one other.
        """
        rows = np.flatnonzero(self.columns.of_kinds((Kind.COLLECTIVE,)))
        ends = self.columns.place[rows].tolist()
        lags = dict(zip(reversed(ends), lag_ns[rows[::-1]].tolist(), strict=True))
        took = [lags.get(transfer.ends[0], 0.0) for transfer in self.transfers]
        ranks = [transfer.ranks for transfer in self.transfers]
        alone = [transfer.alone * lag for transfer, lag in zip(self.transfers, took, strict=True)]
        most = max(1 + self.slowed, *(1 / transfer.alone for transfer in self.transfers if transfer.alone))
        of_end = {end: at for at, transfer in enumerate(self.transfers) if took[at] for end in transfer.ends}
        pairs = [(row, of_end[end]) for row, end in zip(rows.tolist(), ends, strict=True) if end in of_end]
        sharing, number = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        before, near, unshared = took, _ROUNDING, times[: min(of_end, default=len(times))]
        for replay in range(_REPLAYS):
            starts = [max(times[begin] for begin in transfer.begins) for transfer in self.transfers]
            shared = durations(starts, alone, ranks, self.slowed)
            after = [min(now, most * least) for now, least in zip(shared, alone, strict=True)]
            if all(abs(now - then) <= near * then + 1.0 for now, then in zip(after, before, strict=True)):
                return times
            part = 1.0 if replay < _FREE else 0.5
            before = [part * now + (1 - part) * then for now, then in zip(after, before, strict=True)]
            now_ns = lag_ns.copy()
            now_ns[sharing] = lag_ns[sharing] * np.array(before)[number] / np.array(took)[number]
            times, near = self._in_order(now_ns, unshared), _NEAR
        return times
