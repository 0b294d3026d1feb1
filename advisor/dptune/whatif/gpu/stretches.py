"""The steps of a program: from the first operation that a step launches to the first of the next one.

Both are of the stream that computes most. What a script launches first is often a copy on a stream of its own. With a
quicker host it begins while earlier steps still compute, once and for all, and a step would seem that much longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.measure.views import DeviceView, RankView
from dptune.trace.kernels import Work
from dptune.whatif.gpu.graph import Stretch
from dptune.whatif.gpu.items import Key


def steps_of(view: RankView, device: DeviceView, places: Mapping[Key, int]) -> Iterator[Stretch]:
    """Those of a rank that begin with an operation, and end with the begin of another, or the end of the last."""
    columns, rows, launch = view.columns, device.operations.rows, device.operations.launch
    launched = dict(zip(rows.tolist(), launch.tolist(), strict=True))
    lasting = columns.dur_ns[rows] > 0
    rows = rows[lasting]
    starts = {int(at): int(row) for at, row in zip(columns.ts_ns[rows][::-1], rows[::-1], strict=True)}
    ends = {int(at): int(row) for at, row in zip(columns.ends(rows)[::-1], rows[::-1], strict=True)}
    windows = [window for window in device.windows if not window.open_ended and window.start_ns in starts]
    borders = {at for window in windows for at in (window.start_ns, window.end_ns) if at in starts}
    computing = _Computing(view, device)
    instead = {at: computing.since(launched[starts[at]]) for at in borders}
    if any(row is None for row in instead.values()):
        instead = {at: starts[at] for at in borders}
    for window in windows:
        first, after, last = instead[window.start_ns], instead.get(window.end_ns), ends.get(window.end_ns)
        key = None if after is None else (view.rank, "begin", after)
        key = key or (None if last is None else (view.rank, "end", last))
        if first is not None and key is not None:
            begun = places.get((view.rank, "call", launched[first]))
            followed = None if after is None else places.get((view.rank, "call", launched[after]))
            between = None if begun is None or followed is None else (begun, followed)
            yield Stretch(view.rank, window.number, places[view.rank, "begin", first], places[key], between)


def of_all_ranks(steps: Sequence[Stretch]) -> list[Stretch]:
    """The steps that all ranks have whole: in others, collectives are not known on all of them."""
    numbers: dict[int, set[int]] = defaultdict(set)
    for step in steps:
        numbers[step.rank].add(step.number)
    common = set.intersection(*numbers.values()) if numbers else set()
    return [step for step in steps if step.number in common]


class _Computing:
    """What the stream that computes most runs, in the order in which that is launched."""

    def __init__(self, view: RankView, device: DeviceView) -> None:
        columns, operations = view.columns, device.operations
        known = (operations.launch != UNLAUNCHED) & (columns.dur_ns[operations.rows] > 0)
        rows, launch = operations.rows[known], operations.launch[known]
        streams = columns.queue[rows]
        mine = streams == _busiest(streams, np.where(operations.work[known] == Work.COMPUTE, columns.dur_ns[rows], 0))
        order = np.lexsort((columns.ts_ns[rows[mine]], columns.ts_ns[launch[mine]]))
        self._columns, self._rows, self._launch = columns, rows[mine][order], launch[mine][order]

    def since(self, call: int) -> int | None:
        """The row of the first of its operations that this call or a later one launches; None where there is none."""
        if call == UNLAUNCHED:
            return None
        at = int(np.searchsorted(self._columns.ts_ns[self._launch], self._columns.ts_ns[call]))
        return int(self._rows[at]) if at < len(self._rows) else None


def _busiest(streams: Ints, spent_ns: Ints) -> int:
    """The stream with most of this time."""
    numbers, which = np.unique(streams, return_inverse=True)
    return int(numbers[np.argmax(np.bincount(which.reshape(-1), weights=spent_ns))]) if len(numbers) else 0
