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
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, RANGE_CATEGORIES, STEP_NAME

MOST = 10  # gaps of a run that are told

_UNLAUNCHED = "its launch was not recorded"
_ON_CPU = "on a CPU nothing is launched"


def gaps(spent: Iterable[tuple[RankView, DeviceView, Timeline]]) -> list[GapFigures]:
    """The longest gaps inside the steps of all ranks, the longest first."""
    found: list[tuple[int, int, tuple[RankView, DeviceView, Timeline, Step, int]]] = []
    for view, device, timeline in spent:
        idle = _idle(timeline)
        for window in device.windows:
            own = idle.within(window.start_ns, window.end_ns)
            lengths = own.end_ns - own.start_ns
            for at in np.argsort(lengths)[::-1][:MOST].tolist():
                key = int(lengths[at]), -len(found)
                found.append((*key, (view, device, timeline, window, int(own.start_ns[at]))))
        found = heapq.nlargest(MOST, found, key=lambda one: one[:2])
    return [_figures(*gap, length_ns) for length_ns, _, gap in found]


def _idle(timeline: Timeline) -> Intervals:
    start = np.concatenate([timeline.classes[name].start_ns for name in IDLE])
    end = np.concatenate([timeline.classes[name].end_ns for name in IDLE])
    return Intervals.union(start, end)


def _figures(
    view: RankView, device: DeviceView, timeline: Timeline, window: Step, start_ns: int, length_ns: int
) -> GapFigures:
    columns, own = view.columns, device.operations
    end_ns = start_ns + length_ns
    account = timeline.account(start_ns, end_ns)
    ends = columns.ends(own.rows)
    before = own.rows[ends <= start_ns]
    gap = Intervals(np.array([start_ns]), np.array([end_ns]))
    (after,), (launch,) = (rows.tolist() for rows in ending(gap, columns, own.rows, own.launch))
    figures = {
        "before": (
            columns.name(int(before[columns.ends(before).argmax()])) if len(before) else None,
            "nothing ran before",
        ),
        "after": (
            None if after == UNLAUNCHED else columns.name(after),
            "the step ends before the next operation begins",
        ),
        "launched_by": (None if launch == UNLAUNCHED else columns.name(launch), _ON_CPU if own.on_cpu else _UNLAUNCHED),
        "launched_ns": (
            None if launch == UNLAUNCHED else int(columns.ts_ns[launch]) - start_ns,
            _ON_CPU if own.on_cpu else _UNLAUNCHED,
        ),
        "meanwhile": (
            _meanwhile(columns, _thread(view, _around(columns, start_ns, end_ns), launch), start_ns, end_ns),
            "no range of the launching thread lies in it",
        ),
    }
    return GapFigures(
        rank=view.rank,
        device=own.device,
        step=window.number,
        start_ns=start_ns,
        length_ns=length_ns,
        causes_ns={name.removesuffix("_idle_ns"): getattr(account, name) for name in IDLE if getattr(account, name)},
        **{name: value for name, (value, _) in figures.items()},
        missing={name: why for name, (value, why) in figures.items() if value is None},
    )


def _around(columns: Columns, start_ns: int, end_ns: int) -> Ints:
    """The rows of ranges and calls of the host that overlap the gap, but for the marks of steps."""
    rows = np.flatnonzero((columns.ts_ns < end_ns) & (columns.end_ns > start_ns))
    said = columns.of_category(RANGE_CATEGORIES | LAUNCH_CATEGORIES, rows) & ~columns.named(STEP_NAME.match, rows)
    return np.asarray(rows[said], dtype=np.int64)


def _thread(view: RankView, rows: Ints, launch: int) -> Ints:
    """Those of the rows that are of the thread that launched, or else of those that mark the steps."""
    columns = view.columns
    if launch != UNLAUNCHED:
        return np.asarray(rows[columns.thread[rows] == columns.thread[launch]], dtype=np.int64)
    marks = columns.of_category(RANGE_CATEGORIES) & columns.named(STEP_NAME.match)
    return np.asarray(rows[np.isin(columns.thread[rows], columns.thread[marks])], dtype=np.int64)


def _meanwhile(columns: Columns, rows: Ints, start_ns: int, end_ns: int) -> str | None:
    """The name of the range or call with the most time in the gap, of those that do not enclose all of it and more.

    A range around the whole gap (a step, the model) says nothing about it, unless nothing else does.
    """
    inside = rows[(columns.ts_ns[rows] >= start_ns) | (columns.ends(rows) <= end_ns)]
    rows = inside if len(inside) else rows
    if not len(rows):
        return None
    overlap = np.minimum(columns.ends(rows), end_ns) - np.maximum(columns.ts_ns[rows], start_ns)
    return columns.name(int(rows[overlap.argmax()]))
