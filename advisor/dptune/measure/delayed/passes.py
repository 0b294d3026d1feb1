"""Backward passes of a rank, from autograd's AccumulateGrad nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measure.views import DeviceView, RankView
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPTIMIZER_STEP_NAME, RANGE_CATEGORIES, Work


@dataclass(frozen=True)
class BackwardPass:
    """A backward pass on the host, from the start of the first gradient's node to the end of the last one's.

    `step` is the index of its step, `last` whether it is the last of that step, `until_ns` the end of the optimizer's
    step that follows, or of the step without one.
    """

    step: int
    thread: int
    first_ns: int
    last_ns: int
    until_ns: int
    last: bool


def backward_passes(view: RankView) -> list[BackwardPass]:
    """The backward passes in the steps of a rank, in order of time; none where the trace shows no gradients."""
    host, columns = HostEvents(view), view.columns
    gradients = host.gradients
    if not len(gradients):
        return []
    number = host.pass_of(gradients)
    step_of = np.searchsorted([step.start_ns for step in view.steps], columns.ts_ns[gradients], side="right") - 1
    found: list[BackwardPass] = []
    for each in np.unique(number).tolist():
        rows = gradients[number == each]
        step, last_ns = int(step_of[number == each][0]), int(columns.ends(rows).max())
        if found and found[-1].step == step:
            found[-1] = replace(found[-1], last=False)
        threads, times = np.unique(columns.thread[rows], return_counts=True)
        thread, first_ns = int(threads[np.argmax(times)]), int(columns.ts_ns[rows].min())
        until_ns = _updated_ns(columns, last_ns, view.steps[step].end_ns)
        found.append(BackwardPass(step, thread, first_ns, last_ns, until_ns, last=True))
    return found


def _updated_ns(columns: Columns, since_ns: int, end_ns: int) -> int:
    """The end, ns, of the last optimizer step that starts in [since, end); `end` if there is none."""
    updates = columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match)
    updates = updates[(columns.ts_ns[updates] >= since_ns) & (columns.ts_ns[updates] < end_ns)]
    return int(columns.ends(updates).max()) if len(updates) else end_ns


def computed(view: RankView, device: DeviceView, of: BackwardPass, since_ns: int) -> Intervals:
    """Compute of a pass that the host launched (on a CPU: ran) from a moment on, as intervals."""
    columns = view.columns
    rows = device.operations.rows[launched_in(view, device, of.thread, since_ns, of.last_ns)]
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))


def launched_in(view: RankView, device: DeviceView, thread: int, since_ns: int, until_ns: int) -> Mask:
    """Which operations of a device compute and were launched (on a CPU: run) by a thread in [since, until)."""
    operations, columns = device.operations, view.columns
    by: Ints = operations.rows if operations.on_cpu else operations.launch
    at_ns = columns.ts_ns[by]
    chosen = (operations.work == Work.COMPUTE) & (columns.thread[by] == thread) & (by != UNLAUNCHED)
    found: Mask = chosen & (at_ns >= since_ns) & (at_ns < until_ns)
    return found


def compute_stream(view: RankView, device: DeviceView) -> int:
    """The GPU stream with the most compute; -1 if there is none."""
    columns, operations = view.columns, device.operations
    rows = operations.rows[operations.work == Work.COMPUTE]
    streams, number = np.unique(columns.queue[rows], return_inverse=True)
    return int(streams[np.argmax(np.bincount(number, weights=columns.dur_ns[rows]))]) if len(streams) else -1
