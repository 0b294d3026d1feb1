"""Steps: as the host marked them, and as windows of a device.

Work launched inside a step on the host often runs after it. A step's window on a device therefore runs from the first
operation that the step launched to the first that the next one launched. An operation that begins before the step
before has begun, as a copy that a side stream runs ahead, begins no window: windows follow one another and never
overlap. The last step has no next one. Its window ends where an operation that was launched after it begins, if that is
about as long after the step on the host as in other steps; else with its own last operation, or earlier where something
launched after it begins. Such a window is `open_ended`: it lacks the wait before the next step, and may hold what
earlier steps had queued. On a CPU the window is the step of the host itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dptune.measure.device.operations import Operations
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints, Mask
from dptune.trace.columns import Columns
from dptune.trace.events import Trace
from dptune.trace.marks import step_rows

_AS_LATE = 2  # times as long after its step on the host as any other, a first operation is that of the next step
OUTSIDE = -1  # launched in no step, or by nothing that was recorded


@dataclass(frozen=True)
class Step:
    """One step: its number (N of ProfilerStep#N) and an interval in nanoseconds on the trace's clock.

    `open_ended`: it ends with the last operation that was launched in it, since no next step is known.
    """

    number: int
    start_ns: int
    end_ns: int
    open_ended: bool = False

    @property
    def length_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


def host_steps(trace: Trace) -> list[Step]:
    """The ProfilerStep ranges of the host, one per number, in order of time; those without length are left out."""
    columns = trace.columns
    rows, _ = step_rows(columns)
    numbers = (int(columns.name(row).partition("#")[2]) for row in rows.tolist())
    return [
        Step(number, int(columns.ts_ns[row]), int(columns.ts_ns[row] + columns.dur_ns[row]))
        for number, row in zip(numbers, rows.tolist(), strict=True)
    ]


def launching_steps(columns: Columns, operations: Operations, steps: list[Step]) -> Ints:
    """For each operation the index of the host step it was launched in (on a CPU: began in), else OUTSIDE."""
    if operations.on_cpu:
        when = columns.ts_ns[operations.rows]
    else:
        launch = operations.launch
        when = np.where(launch == UNLAUNCHED, np.iinfo(np.int64).min, columns.ts_ns[launch])
    if not steps:
        return np.full(len(when), OUTSIDE, dtype=np.int64)
    at = np.searchsorted(np.array([step.start_ns for step in steps]), when, side="right") - 1
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    return np.where((at >= 0) & (when < ends[at]), at, OUTSIDE).astype(np.int64)


def windows(columns: Columns, operations: Operations, steps: list[Step], launched_in: Ints) -> list[Step]:
    """The windows of the steps on a device in order of time, without those that launched nothing there."""
    if operations.on_cpu:
        return steps
    start, end = columns.ts_ns[operations.rows], columns.ends(operations.rows)
    inside = np.flatnonzero(launched_in != OUTSIDE)
    if not len(inside):
        return []
    inside = inside[np.lexsort((start[inside], launched_in[inside]))]
    launching, first = np.unique(launched_in[inside], return_index=True)
    begins = _begins(launching.tolist(), np.split(start[inside], first[1:]))
    order = list(begins)
    last = order[-1]
    own_end = int(end[launched_in == last].max())
    later = start[_launched_after(columns, operations, steps[last].end_ns)]
    following = int(later[later >= begins[last]].min(initial=np.iinfo(np.int64).max))
    usual = max((begins[at] - steps[at].start_ns for at in order[1:]), default=0)
    whole = len(order) > 2 and own_end <= following <= steps[last].end_ns + _AS_LATE * usual
    ends = [begins[at] for at in order[1:]] + [following if whole else min(own_end, following)]
    found = [
        Step(steps[at].number, begins[at], stop, at == last and not whole) for at, stop in zip(order, ends, strict=True)
    ]
    return [window for window in found if window.length_ns > 0]


def _begins(launching: list[int], starts: list[Ints]) -> dict[int, int]:
    """Per step, in order, its first operation's start after the step before has begun; without those that have none."""
    begins: dict[int, int] = {}
    before = np.iinfo(np.int64).min
    for step, start in zip(launching, starts, strict=True):
        first = int(np.searchsorted(start, before, side="right"))
        if first < len(start):
            before = begins[step] = int(start[first])
    return begins


def _launched_after(columns: Columns, operations: Operations, time_ns: int) -> Mask:
    launch = operations.launch
    return np.asarray((launch != UNLAUNCHED) & (columns.ts_ns[launch] >= time_ns), dtype=np.bool_)
