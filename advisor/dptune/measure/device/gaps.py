"""The longest gaps of the devices, each with what came before and after it, and what the host did meanwhile."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from dptune.measure.device.timeline import Timeline
from dptune.measure.host.launches import UNLAUNCHED, ending
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import DeviceView, RankView
from dptune.measured import IDLE, GapFigures
from dptune.trace.kernels import LAUNCH_CATEGORIES, RANGE_CATEGORIES, STEP_NAME

MOST = 10  # gaps of a run that are reported

_UNLAUNCHED = "its launch was not recorded"
_ON_CPU = "on a CPU nothing is launched"


def gaps(spent: Iterable[tuple[RankView, DeviceView, Timeline]]) -> list[GapFigures]:
    """The longest gaps inside the steps of all ranks, the longest first."""
    found: list[tuple[int, int, tuple[RankView, DeviceView, Timeline, Step, int]]] = []
    for view, device, timeline in spent:
        idle = _idle(timeline)
        for window in device.windows:
            window_gaps = idle.within(window.start_ns, window.end_ns)
            lengths = window_gaps.end_ns - window_gaps.start_ns
            for at in np.argsort(lengths)[::-1][:MOST].tolist():
                key = int(lengths[at]), -len(found)
                found.append((*key, (view, device, timeline, window, int(window_gaps.start_ns[at]))))
        found = heapq.nlargest(MOST, found, key=lambda candidate: candidate[:2])
    device_gaps = {
        id(device): _DeviceGaps(view, device) for view, device in {id(gap[1]): gap[:2] for _, _, gap in found}.values()
    }
    return [_figures(device_gaps[id(gap[1])], *gap, length_ns) for length_ns, _, gap in found]


def _idle(timeline: Timeline) -> Intervals:
    start = np.concatenate([timeline.classes[name].start_ns for name in IDLE])
    end = np.concatenate([timeline.classes[name].end_ns for name in IDLE])
    return Intervals.union(start, end)


class _DeviceGaps:
    """The gaps of one device of a rank, with their causes: sorted once, however many they are."""

    def __init__(self, view: RankView, device: DeviceView) -> None:
        operations, columns = device.operations, view.columns
        self._columns, self._launch = columns, operations.launch
        self._begun, self._ended = _sorted(columns.ts_ns[operations.rows]), _sorted(columns.ends(operations.rows))
        self._rows = operations.rows
        rows = columns.rows(RANGE_CATEGORIES | LAUNCH_CATEGORIES, lambda name: not STEP_NAME.match(name))
        self._host = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
        self._host_start = columns.ts_ns[self._host]
        self._host_latest = np.maximum.accumulate(columns.ends(self._host))
        marks = columns.rows(RANGE_CATEGORIES, STEP_NAME.match)
        self._marking = columns.thread[marks]

    def before(self, start_ns: int) -> int:
        """The row of the operation that ended last before a gap, the first of several; UNLAUNCHED where none did."""
        order, ends = self._ended
        last = int(np.searchsorted(ends, start_ns, side="right")) - 1
        return UNLAUNCHED if last < 0 else int(self._rows[order[np.searchsorted(ends, ends[last])]])

    def after(self, end_ns: int) -> tuple[int, int]:
        """The row of the operation that begins at the end of a gap, and of the call that launched it."""
        order, starts = self._begun
        begun = order[slice(*np.searchsorted(starts, [end_ns, end_ns + 1]).tolist())]
        gap = Intervals(np.array([end_ns - 1]), np.array([end_ns]))
        (after,), (launch,) = (
            found.tolist() for found in ending(gap, self._columns, self._rows[begun], self._launch[begun])
        )
        return after, launch

    def meanwhile(self, launch: int, start_ns: int, end_ns: int) -> str | None:
        """The name of the innermost range or call that covers half of a gap or more.

        Of the thread that launched, or else those that mark the steps.
        """
        columns = self._columns
        first = int(np.searchsorted(self._host_latest, start_ns, side="right"))
        rows = np.sort(self._host[first : int(np.searchsorted(self._host_start, end_ns))])
        rows = rows[columns.ends(rows) > start_ns]
        threads = self._marking if launch == UNLAUNCHED else columns.thread[[launch]]
        rows = rows[np.isin(columns.thread[rows], threads)]
        overlap = np.minimum(columns.ends(rows), end_ns) - np.maximum(columns.ts_ns[rows], start_ns)
        rows = rows[2 * overlap >= end_ns - start_ns][::-1]  # of two of one extent the inner one is written last
        return columns.name(int(rows[columns.dur_ns[rows].argmin()])) if len(rows) else None


def _sorted(times_ns: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(times_ns, kind="stable")
    return order, times_ns[order]


def _figures(
    device_gaps: _DeviceGaps,
    view: RankView,
    device: DeviceView,
    timeline: Timeline,
    window: Step,
    start_ns: int,
    length_ns: int,
) -> GapFigures:
    columns, operations = view.columns, device.operations
    end_ns = start_ns + length_ns
    account = timeline.account(start_ns, end_ns)
    before = device_gaps.before(start_ns)
    after, launch = device_gaps.after(end_ns)
    figures = {
        "before": (None if before == UNLAUNCHED else columns.name(before), "nothing ran before"),
        "after": (
            None if after == UNLAUNCHED else columns.name(after),
            "the step ends before the next operation begins",
        ),
        "launched_by": (
            None if launch == UNLAUNCHED else columns.name(launch),
            _ON_CPU if operations.on_cpu else _UNLAUNCHED,
        ),
        "launched_ns": (
            None if launch == UNLAUNCHED else int(columns.ts_ns[launch]) - start_ns,
            _ON_CPU if operations.on_cpu else _UNLAUNCHED,
        ),
        "meanwhile": (
            device_gaps.meanwhile(launch, start_ns, end_ns),
            "no range of the launching thread covers half of it",
        ),
    }
    return GapFigures.of(
        figures,
        rank=view.rank,
        device=operations.device,
        step=window.number,
        start_ns=start_ns,
        length_ns=length_ns,
        causes_ns={name.removesuffix("_idle_ns"): getattr(account, name) for name in IDLE if getattr(account, name)},
    )
