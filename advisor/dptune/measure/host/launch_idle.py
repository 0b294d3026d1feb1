"""What devices waited for that had nothing launched: by phase, by operator, and by the operation that waited."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dptune.measure.device.phases import PHASES, DeviceTimeline, Phased, bounds
from dptune.measure.device.timeline import Timeline
from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.enclosing import NOWHERE, Ranges, holding
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.queued import queued_steps
from dptune.measure.intervals import Intervals, Ints, Mask, distinct
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.measured import IdlePart, LaunchIdleFigures, OptimizerLaunches
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPERATOR_CATEGORIES, RANGE_CATEGORIES, Work

MOST = 5  # names of each kind
# The most that recording an event of the host takes: twice what was measured. On 12 recordings of an H200, steps with
# the profiler took up to 4.4 us longer for each event (python tests/benchmarks/event_cost.py).
EVENT_NS = 10_000
NONE_WAITED = "no device waited for a launch"
_NO_OPTIMIZER = "no range of the trace names the optimizer"
_NOT_QUEUED = "the first traced steps do not show the untraced step time"
_OPTIMIZER = re.compile(r"^Optimizer\.(?:step|zero_grad)#([^.]+)")
_ZEROING = re.compile(r"^Optimizer\.zero_grad#")
_TOGETHER = re.compile(r"_foreach_|_fused_|multi_tensor_apply")
# Ranges and kernels of torch.compile; a Triton kernel may also be written by hand, so that its own name says nothing.
_COMPILED = re.compile(r"^(## Call CompiledFxGraph|Torch-Compiled Region|CompiledFunction|triton_(poi|per|red)_fused)")


def launch_idle(spent: Sequence[DeviceTimeline], phased: Phased | str) -> LaunchIdleFigures | None:
    """Over all ranks and devices; None where none waited for a launch."""
    waits = [_Waits(*device_timeline) for device_timeline in spent if not device_timeline[1].operations.on_cpu]
    idle_ns = sum(int(device_waits.lengths.sum()) for device_waits in waits)
    if not idle_ns:
        return None
    steps = sum(view.windows for view in {view.rank: view for view, _, _ in spent}.values())
    phases: Counter[str] = Counter()
    phase_gaps: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    gaps: Counter[str] = Counter()
    for wait, phase in zip(waits, [] if isinstance(phased, str) else phased.operations, strict=False):
        _add(phases, phase_gaps, [PHASES[number] for number in phase[wait.operations].tolist()], wait.lengths)
    for wait in waits:
        _add(operations, gaps, wait.columns.names_of(wait.rows), wait.lengths)
        operators.update(wait.by_operator())
    calls = _calls(waits, [name for name, _ in operators.most_common(MOST)])
    queued = next((found for device_timeline in spent if (found := queued_steps(*device_timeline)) is not None), None)
    optimizer = _optimizer(waits, idle_ns, steps)
    figures = {
        "phases": None if isinstance(phased, str) else _parts(phases, phase_gaps, idle_ns, steps),
        "optimizer": optimizer,
        "queued": queued,
    }
    reasons = {
        "phases": phased if isinstance(phased, str) else "",
        "optimizer": _NO_OPTIMIZER,
        "queued": _NOT_QUEUED,
    }
    return LaunchIdleFigures(
        idle_ns=idle_ns,
        unprofiled_share=_unprofiled_share(spent, waits),
        operators=_parts(operators, calls, idle_ns, steps),
        operations=_parts(operations, gaps, idle_ns, steps),
        compiled=any(device_waits.columns.named(_COMPILED.search, device_waits.inside).any() for device_waits in waits),
        **figures,
        missing={name: reasons[name] for name, value in figures.items() if value is None},
    )


def _unprofiled_share(spent: Sequence[DeviceTimeline], waits: Sequence[_Waits]) -> float:
    """The least share of the steps that launching would leave idle without the profiler, over ranks and devices."""
    idle_ns = sum(int(device_waits.lengths.sum()) for device_waits in waits)
    whole_ns = profiled_ns = 0
    for view, device, _ in spent:
        if device.operations.on_cpu:
            continue
        whole_ns += sum(window.length_ns for window in device.windows)
        profiled_ns += round(EVENT_NS * host_events(view) * len(device.windows) / len(view.steps))
    return max(0.0, (idle_ns - profiled_ns) / (whole_ns - profiled_ns)) if whole_ns > profiled_ns else 0.0


def host_events(view: RankView) -> int:
    """How many events of the host the steps of a rank have, which has some: operators, ranges, calls, functions."""
    return events_in(view, Intervals.union(np.array([view.steps[0].start_ns]), np.array([view.steps[-1].end_ns])))


def events_in(view: RankView, times: Intervals) -> int:
    """How many events of the host start in these times, on any thread."""
    rows = view.columns.rows(RANGE_CATEGORIES | LAUNCH_CATEGORIES | PYTHON_CATEGORIES)
    return int(times.hold(view.columns.ts_ns[rows]).sum())


def _add(idle: Counter[str], gaps: Counter[str], names: Sequence[str], lengths: Ints) -> None:
    for name, length_ns in zip(names, lengths.tolist(), strict=True):
        idle[name] += length_ns
        gaps[name] += 1


def _parts(idle: Mapping[str, int], many: Mapping[str, int], idle_ns: int, steps: int) -> list[IdlePart]:
    longest = sorted(
        (item for item in idle.items() if item[1]), key=lambda named_time: (-named_time[1], named_time[0])
    )[:MOST]
    return [
        IdlePart(name=name, idle_ns=ns, share=ns / idle_ns, per_step=many[name] / max(1, steps)) for name, ns in longest
    ]


@dataclass(frozen=True, eq=False)
class _Waits:
    """The gaps of one device in its steps that are time of launching, and what each of them ended with."""

    view: RankView
    device: DeviceView
    timeline: Timeline

    @property
    def columns(self) -> Columns:
        """The trace of the rank."""
        return self.view.columns

    @cached_property
    def gaps(self) -> Intervals:
        """Parts of gaps: the operation that waited begins at the end of its gap, or soon after the last of them."""
        begin, end = bounds(self.device.windows)
        return self.timeline.classes["launch_idle_ns"] & Intervals.union(begin, end)

    @property
    def lengths(self) -> Ints:
        """Nanoseconds of each."""
        return self.gaps.end_ns - self.gaps.start_ns

    @cached_property
    def operations(self) -> Ints:
        """By gap the place of the operation that waited: the next to begin, of several the first launched."""
        device_operations = self.device.operations
        start, launch = self.columns.ts_ns[device_operations.rows], device_operations.launch
        called = np.where(launch == UNLAUNCHED, np.iinfo(np.int64).max, self.columns.ts_ns[launch])
        order = np.lexsort((called, start))
        at = np.searchsorted(start[order], self.gaps.end_ns)
        return np.asarray(order[np.minimum(at, len(order) - 1)], dtype=np.int64)

    @property
    def rows(self) -> Ints:
        """Their rows."""
        return self.device.operations.rows[self.operations]

    @cached_property
    def inside(self) -> Ints:
        """Rows of operators and ranges of the host, and of operations of the device, of the steps."""
        columns = self.columns
        rows = columns.rows(RANGE_CATEGORIES)
        begin, end = bounds(self.view.steps)
        in_steps = Intervals.union(begin, end).lengths(columns.ts_ns[rows], columns.ts_ns[rows] + 1) > 0
        return np.concatenate((rows[in_steps], self.device.operations.rows[self.device.launched_in != OUTSIDE]))

    def by_operator(self) -> Counter[str]:
        """Operator -> nanoseconds in which the launching thread was in it and in none inside it."""
        columns = self.columns
        launch = self.device.operations.launch[self.operations]
        thread = columns.thread[launch]
        found: Counter[str] = Counter()
        for number in np.unique(thread[launch != UNLAUNCHED]).tolist():
            operators = columns.rows(OPERATOR_CATEGORIES)
            operators = operators[columns.thread[operators] == number]
            asked = (thread == number) & (launch != UNLAUNCHED)
            gaps = Intervals.union(self.gaps.start_ns[asked], self.gaps.end_ns[asked])
            moments = np.concatenate((columns.ts_ns[operators], columns.ends(operators)))
            cuts = distinct(np.concatenate((moments[gaps.hold(moments)], gaps.start_ns, gaps.end_ns)))
            length = gaps.lengths(cuts[:-1], cuts[1:])
            start = cuts[:-1][length > 0]
            operators = holding(columns, operators, start)
            inner = Ranges.of_rows(columns, operators).at(np.full(len(start), number), start)
            known = inner != NOWHERE
            names = columns.names_of(operators[inner[known]])
            for name, ns in zip(names, length[length > 0][known].tolist(), strict=True):
                found[name] += ns
        return found


def _calls(waits: Sequence[_Waits], names: Sequence[str]) -> Counter[str]:
    """How often each operator is called in the steps; of a rank with several devices once."""
    found: Counter[str] = Counter()
    for rank_waits in {wait.view.rank: wait for wait in waits}.values():
        operators = rank_waits.inside[rank_waits.columns.of_category(OPERATOR_CATEGORIES, rank_waits.inside)]
        counts = np.bincount(rank_waits.columns.name_id[operators], minlength=len(rank_waits.columns.names))
        for number in np.flatnonzero(counts).tolist():
            if (name := rank_waits.columns.names[number]) in names:
                found[name] += int(counts[number])
    return found


def _optimizer(waits: Sequence[_Waits], idle_ns: int, steps: int) -> OptimizerLaunches | None:
    launches = launched = zeroing = waited_ns = 0
    names: Counter[str] = Counter()
    together = False
    for wait in waits:
        columns, operations = wait.columns, wait.device.operations
        ranges = columns.rows(RANGE_CATEGORIES, _OPTIMIZER.match)
        if not len(ranges):
            continue
        counted = (
            (operations.launch != UNLAUNCHED)
            & (wait.device.launched_in != OUTSIDE)
            & (operations.work <= Work.COMMUNICATION)
        )
        calls = distinct(operations.launch[counted])
        inside = _inside(columns, ranges, calls)
        launched, launches = launched + len(calls), launches + int(inside.sum())
        zeroing += int(_inside(columns, columns.rows(RANGE_CATEGORIES, _ZEROING.match), calls).sum())
        waited_ns += int(wait.lengths[np.isin(operations.launch[wait.operations], calls[inside])].sum())
        names.update(match[1] for row in ranges.tolist() if (match := _OPTIMIZER.match(columns.name(row))))
        kernels = operations.rows[np.isin(operations.launch, calls[inside])]
        operators = columns.rows(OPERATOR_CATEGORIES, _TOGETHER.search)
        together |= bool(columns.named(_TOGETHER.search, kernels).any() or _inside(columns, ranges, operators).any())
    if not launches:
        return None
    return OptimizerLaunches(
        name=names.most_common(1)[0][0],
        per_step=launches / max(1, steps),
        of_per_step=launched / max(1, steps),
        idle_share=waited_ns / idle_ns,
        for_each_tensor=not together,
        zeroing_per_step=zeroing / max(1, steps),
        zeroing_host_ns=sum(_zeroing_ns(view) for view in {wait.view.rank: wait.view for wait in waits}.values()),
    )


def _zeroing_ns(view: RankView) -> int:
    """Host time in `zero_grad`, in the steps that have a window on a device of the rank."""
    columns, counted = view.columns, {window.number for device in view.devices for window in device.windows}
    rows = columns.rows(RANGE_CATEGORIES, _ZEROING.match)
    steps = Intervals.union(*bounds([step for step in view.steps if step.number in counted]))
    return (Intervals.union(columns.ts_ns[rows], columns.ends(rows)) & steps).total_ns


def _inside(columns: Columns, ranges: Ints, rows: Ints) -> Mask:
    """Which of the rows begin in one of the ranges, on its thread."""
    return Ranges.of_rows(columns, ranges).hold(columns.thread[rows], columns.ts_ns[rows])
