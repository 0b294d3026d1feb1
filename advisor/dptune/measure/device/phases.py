"""Forward, backward and optimizer: each operation of a device by where its host thread was as it launched it.

A range of the optimizer's step() decides first, then one of autograd's pass, then the step. A thread that runs backward
ranges and nothing that a script marks is autograd's own: all of it is backward. A step() in which a backward pass runs
was given a closure: only what comes after that pass is the optimizer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from dptune.measure.communication.calls import asked
from dptune.measure.device.operations import ENCLOSING
from dptune.measure.device.timeline import Timeline
from dptune.measure.host.enclosing import Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import NOTHING, Intervals, Ints, first_begun
from dptune.measure.once import once_for_each
from dptune.measure.steps.windows import OUTSIDE, Step
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Phase, PhaseFigures
from dptune.trace.columns import Columns
from dptune.trace.kernels import (
    BACKWARD_NAME,
    OPERATOR_CATEGORIES,
    OPTIMIZER_KERNEL_NAME,
    OPTIMIZER_STEP_NAME,
    RANGE_CATEGORIES,
    Work,
)
from dptune.trace.marks import shows_compute

PHASES: tuple[Phase, ...] = get_args(Phase)
FORWARD, BACKWARD, OPTIMIZER, UNKNOWN = range(len(PHASES))
_ORDER = (OPTIMIZER, BACKWARD, FORWARD)  # to which of several a nanosecond of compute belongs

NO_BACKWARD = "the trace has no ranges of autograd's backward pass"
INFERENCE = f"{NO_BACKWARD} and no optimizer (this looks like inference)"
NO_OPTIMIZER = "the trace has no ranges of an optimizer's step(), so its work cannot be identified"
_NO_HOST = "the phase of this work is unknown, and so is its host time"

DeviceTimeline = tuple[RankView, DeviceView, Timeline]


@dataclass(frozen=True, eq=False)
class HostPhases:
    """When the threads of a rank were in autograd's pass and in the optimizer.

    `own_threads` are autograd's, `threads` all on which the trace has ranges at all.
    """

    backward: Ranges
    optimizer: Ranges
    own_threads: Ints
    threads: Ints
    going_back: Intervals
    optimizing: Intervals

    def at(self, thread: Ints, time_ns: Ints) -> Ints:
        """The phase of each moment on a thread, as index of PHASES; FORWARD whatever else a script does."""
        found = np.where(np.isin(thread, self.threads), FORWARD, UNKNOWN)
        back = np.isin(thread, self.own_threads) | self.backward.hold(thread, time_ns)
        found[back] = BACKWARD
        found[self.optimizer.hold(thread, time_ns)] = OPTIMIZER
        return found


@once_for_each
def host_phases(columns: Columns) -> HostPhases | str:
    """The phases of a rank's threads, or why the trace does not tell them."""
    ranges, thread = columns.rows(RANGE_CATEGORIES), columns.thread
    backward = columns.rows(RANGE_CATEGORIES, BACKWARD_NAME.search)
    optimizer = columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match)
    if not len(backward):
        trains = len(optimizer) or any(map(OPTIMIZER_KERNEL_NAME.search, columns.names))  # in a CUDA graph, say
        unclear = trains or not len(columns.rows(OPERATOR_CATEGORIES)) or not shows_compute(columns)
        return NO_BACKWARD if unclear else INFERENCE
    if not len(optimizer):
        return NO_OPTIMIZER
    autograd = autograd_threads(columns)
    passes = np.concatenate((ranges[np.isin(thread[ranges], autograd)], backward))
    going_back = Intervals.union(columns.ts_ns[passes], columns.ends(passes))
    start, end = _after_closures(columns.ts_ns[optimizer], columns.ends(optimizer), going_back)
    return HostPhases(
        Ranges.of_rows(columns, backward),
        Ranges.of(thread[optimizer], start, end),
        autograd,
        np.unique(thread[ranges]),
        going_back,
        Intervals.union(start, end),
    )


def autograd_threads(columns: Columns) -> Ints:
    """The threads that run backward ranges and nothing that a script marks, as numbers of `Columns.thread`."""
    backward, script = (columns.rows(RANGE_CATEGORIES, name) for name in (BACKWARD_NAME.search, ENCLOSING.match))
    return np.setdiff1d(columns.thread[backward], columns.thread[script])


def _after_closures(start: Ints, end: Ints, going_back: Intervals) -> tuple[Ints, Ints]:
    """The optimizer's ranges; those that hold whole backward passes only from the end of the last."""
    if not len(going_back):  # backward ranges of no duration
        return start, end
    last = np.searchsorted(going_back.start_ns, end) - 1
    at = np.maximum(last, 0)
    closure = (last >= 0) & (going_back.start_ns[at] >= start) & (going_back.end_ns[at] <= end)
    return np.where(closure, going_back.end_ns[at], start), end


@dataclass(frozen=True, eq=False)
class Phased:
    """The phases of each rank's threads, by its number, and of each device the phase of each operation.

    `operations` are indices of PHASES, int64, one array a device, in the order of the devices.
    """

    hosts: dict[int, HostPhases]
    operations: list[Ints]


def phased(spent: Sequence[DeviceTimeline]) -> Phased | str:
    """The phases of all operations, or why a trace does not tell them."""
    hosts: dict[int, HostPhases] = {}
    for view in {view.rank: view for view, _, _ in spent}.values():
        host = host_phases(view.columns)
        if isinstance(host, str):
            return host
        hosts[view.rank] = host
    return Phased(hosts, [_of_device(view, device, hosts[view.rank]) for view, device, _ in spent])


def _of_device(view: RankView, device: DeviceView, host: HostPhases) -> Ints:
    """By the call that launched it; on a CPU itself, or the operator that asked for the collective."""
    operations, columns = device.operations, view.columns
    by = operations.launch
    if operations.on_cpu:
        asking = asked(columns)
        gloo = operations.work == Work.COMMUNICATION
        by = operations.rows.copy()
        by[gloo] = [asking.get(row, UNLAUNCHED) for row in operations.rows[gloo].tolist()]
    phase = host.at(columns.thread[by], columns.ts_ns[by])
    phase[(phase == FORWARD) & (device.launched_in == OUTSIDE)] = UNKNOWN
    phase[by == UNLAUNCHED] = UNKNOWN
    return phase


def phases(spent: Sequence[DeviceTimeline], known_phases: Phased) -> list[PhaseFigures]:
    """The phases of the steps of all devices; `unknown` only where there is any."""
    compute, communication, hidden = (np.zeros(len(PHASES), dtype=np.int64) for _ in range(3))
    for (view, device, timeline), phase in zip(spent, known_phases.operations, strict=True):
        begin, end = bounds(device.windows)
        for number, computing in enumerate(_compute(view, device, timeline, phase)):
            compute[number] += computing.lengths(begin, end).sum()
        for number, communicating in enumerate(_communication(view, device, phase)):
            communication[number] += communicating.lengths(begin, end).sum()
            hidden[number] += (communicating & timeline.classes["compute_ns"]).lengths(begin, end).sum()
    host_ns = _host({view.rank: view for view, _, _ in spent}.values(), known_phases)
    shown = [number for number in range(len(PHASES)) if number != UNKNOWN or compute[number] or communication[number]]
    return [
        PhaseFigures(
            phase=PHASES[number],
            compute_ns=int(compute[number]),
            communication_ns=int(communication[number]),
            hidden_communication_ns=int(hidden[number]),
            exposed_communication_ns=int(communication[number] - hidden[number]),
            host_ns=host_ns.get(number),
            missing={} if number in host_ns else {"host_ns": _NO_HOST},
        )
        for number in shown
    ]


def bounds(steps: Sequence[Step]) -> tuple[Ints, Ints]:
    """Starts and ends of steps or windows, int64 nanoseconds."""
    return (
        np.array([step.start_ns for step in steps], dtype=np.int64),
        np.array([step.end_ns for step in steps], dtype=np.int64),
    )


def _compute(view: RankView, device: DeviceView, timeline: Timeline, phase: Ints) -> list[Intervals]:
    """The compute of each phase: disjoint sets, whose union is that of the account."""
    operations, columns = device.operations, view.columns
    found = [NOTHING] * len(PHASES)
    rest = timeline.classes["compute_ns"]
    for number in _ORDER:
        rows = operations.rows[(operations.work == Work.COMPUTE) & (phase == number)]
        found[number] = rest & Intervals.union(columns.ts_ns[rows], columns.ends(rows))
        rest -= found[number]
    found[UNKNOWN] = rest
    return found


def _communication(view: RankView, device: DeviceView, phase: Ints) -> list[Intervals]:
    operations, columns = device.operations, view.columns
    collectives = operations.work == Work.COMMUNICATION
    rows, phase = operations.rows[collectives], phase[collectives]
    start, end = first_begun(columns.ts_ns[rows], columns.ends(rows))
    return [Intervals.union(start[phase == number], end[phase == number]) for number in range(len(PHASES))]


def _host(views: Iterable[RankView], known_phases: Phased) -> dict[int, int]:
    """Time of the threads in each phase, over the steps of each rank as its host marks them."""
    found = {FORWARD: 0, BACKWARD: 0, OPTIMIZER: 0}
    for view in views:
        host = known_phases.hosts[view.rank]
        counted = {window.number for device in view.devices for window in device.windows}
        begin, end = bounds([step for step in view.steps if step.number in counted])
        optimizing = int(host.optimizing.lengths(begin, end).sum())
        going_back = int((host.going_back - host.optimizing).lengths(begin, end).sum())
        found[OPTIMIZER] += optimizing
        found[BACKWARD] += going_back
        found[FORWARD] += int((end - begin).sum()) - optimizing - going_back
    return found
