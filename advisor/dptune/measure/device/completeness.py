"""Whether a trace holds the device's work that the host launched, at times that can be true.

Profilers lose events: a buffer overflows, a stream is dropped, a clock is not converted. Every share of a step is then
wrong, so that a rank whose events are lost or misdated has no steady steps. Of public traces nearly all have a kernel
for every launch of one: without a kernel for more than `MOST_LOST` of them, events were lost.

A launch may lack its kernel for a good reason: it was recorded into a CUDA graph (between `cudaStreamBeginCapture` and
`EndCapture`), is the inner of two nested calls, belongs to the first or last `EDGE` calls, or its kernel ran after the
recording ended. Launches of graphs are not counted: how many kernels one has is not known.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dptune.measure.device.operations import MOST_LOST, Operations, misdated
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measure.steps.windows import Step
from dptune.measured import Loss, in_ms
from dptune.trace.columns import NONE, Columns
from dptune.trace.events import Trace
from dptune.trace.kernels import (
    COPY_CATEGORIES,
    DEVICE_CATEGORIES,
    KERNEL_CATEGORIES,
    LAUNCH_CATEGORIES,
    SYNC_CATEGORIES,
)
from dptune.trace.kineto.limitations import DAMAGED
from dptune.trace.vendors import CAPTURE_NAME, COPY_CALL_NAME, KERNEL_LAUNCH_NAME, WAIT_NAME

EDGE = 2  # calls: the profiler starts and stops recording calls and kernels one after the other
_IDLE_NS = 10_000_000  # no launch is pending for as long while the device is idle, of one that runs promptly
_WOKEN_NS = 1_000_000  # a call that waits for a device returns as soon after its last operation
_ENOUGH = 50  # operations whose launch is known
_APART_NS = 200_000  # in public traces a device's clock is late by up to 0.1 ms
_LATE_NS, _IDLE_SHARE = 500_000, 0.5  # of 227 traces none is so: the slowest device starts work within 0.3 ms
MOST_UNTIMED = 0.2  # of kernels; in public traces up to 7 % take less than the microsecond that was written
LEAST = 3  # lost: no fewer say that the recording is damaged


def losses(trace: Trace, devices: list[Operations], steps: list[Step]) -> list[Loss]:
    """What is lost or misdated in the trace of one rank; nothing of a rank that computes on a CPU."""
    columns = trace.columns
    if not devices or any(device.on_cpu for device in devices):
        return []
    found = _misdated(columns)
    damaged = any(finding.code in DAMAGED for finding in trace.findings)
    for loss in (
        _untimed(columns),
        _between_steps(columns, devices, steps),
        _without_operation(columns, devices, KERNEL_LAUNCH_NAME.search, "kernel", damaged),
        _without_operation(columns, devices, COPY_CALL_NAME.search, "copy", damaged),
        _outside_steps(columns, devices, steps),
        _clocks_apart(columns, devices),
    ):
        if loss is not None and not any(each.fatal for each in found):
            found.append(loss)
    return found


def _misdated(columns: Columns) -> list[Loss]:
    rows = columns.rows(DEVICE_CATEGORIES)
    zero, early, overlong = misdated(columns)
    fatal = int((zero | early | overlong).sum()) > MOST_LOST * len(rows)
    found = []
    for wrong, what in (
        (zero, "have a timestamp of 0"),
        (early, "start before the call that launched them"),
        (overlong, "still run when the next one on their stream begins"),
    ):
        count = int(wrong.sum())
        if count:
            rest = "so device times cannot be trusted" if fatal else "and are excluded"
            text = f"{count:,} of {len(rows):,} device operations {what}, {rest}"
            found.append(Loss(code="device-events-misdated", fatal=fatal, text=text))
    return found


def _clocks_apart(columns: Columns, devices: list[Operations]) -> Loss | None:
    """Operations that start before their launch; or all long after it, although the device is idle meanwhile."""
    for device in devices:
        known = device.launch != UNLAUNCHED
        if int(known.sum()) < _ENOUGH:
            continue
        waited_ns = columns.ts_ns[device.rows[known]] - columns.ts_ns[device.launch[known]]
        first_ns = float(np.percentile(waited_ns, 1))
        begin_ns, end_ns = device.span_ns
        busy_ns = Intervals.union(columns.ts_ns[device.rows], columns.ends(device.rows)).total_ns
        idle = 1 - busy_ns / max(1, end_ns - begin_ns)
        what, by_ns = "", first_ns
        if first_ns < -_APART_NS:
            by_ns = -float(waited_ns.min())
            early = int((waited_ns < 0).sum())
            of_all = f"{early:,} of {len(waited_ns):,} device operations"
            what = f"{of_all} start before the call that launched them, by up to"
        elif first_ns > _LATE_NS and idle > _IDLE_SHARE:
            idle_words = f"the device is idle for {100 * idle:.0f} % of the recording"
            what = f"{idle_words}, but 99 % of its operations start later after their launch than"
        if what:
            why = "the clocks of host and device seem to differ, so causes of idle time are uncertain"
            text = f"{what} {in_ms(by_ns)} ms: {why}"
            return Loss(code="clocks-apart", fatal=False, text=text)
    return None


def _untimed(columns: Columns) -> Loss | None:
    """Kernels without a duration, where they are more than whole microseconds explain (Kineto wrote those in 2021)."""
    rows = columns.rows(KERNEL_CATEGORIES)
    untimed = int((columns.dur_ns[rows] <= 0).sum())
    if untimed <= MOST_UNTIMED * len(rows):
        return None
    text = f"{untimed:,} of {len(rows):,} kernels have no duration, so device times cannot be trusted"
    return Loss(code="device-events-untimed", fatal=True, text=text)


def _without_operation(
    columns: Columns, devices: list[Operations], named: Callable[[str], object], noun: str, damaged: bool
) -> Loss | None:
    calls = columns.rows(LAUNCH_CATEGORIES, named)
    calls = calls[columns.correlation[calls] != NONE]
    calls = calls[np.argsort(columns.ts_ns[calls], kind="stable")]
    calls = calls[~_nested(columns, calls) & ~_captured(columns, calls)]
    if not len(calls):
        return None
    ran = np.concatenate([device.rows for device in devices])
    without = ~np.isin(columns.correlation[calls], columns.correlation[ran])
    lost = without & ~_after_the_end(columns, devices, calls) & ~_at_the_edge(without)
    count = int(lost.sum())
    if not count:
        return None
    fatal = count > max(MOST_LOST * len(calls), LEAST)
    count = int(without.sum()) if fatal else count
    what = {"kernel": "kernel launches", "copy": "copy calls"}[noun]
    have = "has" if count == 1 else "have"
    text = f"{count:,} of {len(calls):,} {what} {have} no {noun} in the trace"
    why = "some events in the file could not be read" if damaged else _mislabelled(columns, devices, calls[lost], noun)
    if why:
        return Loss(code="device-events-damaged", fatal=fatal, text=f"{text}: {why}")
    return Loss(code="device-events-lost", fatal=fatal, text=f"{text}: the profiler lost events")


def _mislabelled(columns: Columns, devices: list[Operations], calls: Ints, noun: str) -> str:
    """What says that the operations of calls are in the trace all the same; empty where nothing does."""
    others = np.flatnonzero(np.isin(columns.correlation, columns.correlation[calls]))
    others = others[~columns.of_category(LAUNCH_CATEGORIES | DEVICE_CATEGORIES | SYNC_CATEGORIES, others)]
    if len(np.unique(columns.correlation[others])) * 2 > len(calls):
        categories = sorted({columns.categories[at] for at in columns.category_id[others].tolist()})
        return f"events with their correlation IDs have the category {', '.join(map(repr, categories[:3]))} instead"
    kinds = KERNEL_CATEGORIES if noun == "kernel" else COPY_CATEGORIES
    unlaunched = np.concatenate([device.rows[device.launch == UNLAUNCHED] for device in devices])
    count = int(columns.of_category(kinds, unlaunched).sum())
    if count * 2 > len(calls):
        have = f"{noun} has" if count == 1 else ("kernels have" if noun == "kernel" else "copies have")
        return f"{count:,} {have} no launch call, so correlation IDs are missing or wrong"
    return ""


def _nested(columns: Columns, calls: Ints) -> Mask:
    """Which calls another of them made, of another name: the runtime's launch calls the driver's."""
    parents = Ranges.of_rows(columns, calls).parents()
    return np.asarray(
        (parents != NOWHERE) & (columns.name_id[calls] != columns.name_id[calls[parents]]), dtype=np.bool_
    )


def _captured(columns: Columns, calls: Ints) -> Mask:
    """Which calls were recorded into a graph: after the begin of a capture on their thread, before its end."""
    marks = columns.rows(LAUNCH_CATEGORIES, CAPTURE_NAME.match)
    inside = np.zeros(len(calls), dtype=np.bool_)
    for thread in np.unique(columns.thread[marks]).tolist():
        thread_marks = marks[columns.thread[marks] == thread]
        thread_marks = thread_marks[np.argsort(columns.ts_ns[thread_marks], kind="stable")]
        begins = columns.named(lambda name: "Begin" in name, thread_marks)
        (mine,) = np.nonzero(columns.thread[calls] == thread)
        last = np.searchsorted(columns.ts_ns[thread_marks], columns.ts_ns[calls[mine]], side="right") - 1
        inside[mine] = np.where(last >= 0, begins[last], not begins[0])  # a capture may begin before the recording
    return inside


def _at_the_edge(without: Mask) -> Mask:
    """The first and the last calls, where they lack an operation and are no more than `EDGE`."""
    edge = np.zeros(len(without), dtype=np.bool_)
    (with_one,) = np.nonzero(~without)
    if len(with_one):
        first, last = int(with_one[0]), int(with_one[-1]) + 1
        edge[:first] = first <= EDGE
        edge[last:] = len(without) - last <= EDGE
    return edge


def _after_the_end(columns: Columns, devices: list[Operations], calls: Ints) -> Mask:
    """Which calls launched what ran after the end of the recording, behind the last operation of the busiest stream.

    The device is then busy until the end: no more time is left after its last operation than the longest one takes, or
    a hundredth of the recording.
    """
    after = np.ones(len(calls), dtype=np.bool_)
    begin, end = int(columns.ts_ns.min()), int(columns.end_ns.max())
    for device in devices:
        known = device.launch != UNLAUNCHED
        left_ns = end - device.span_ns[1]
        longest_ns = int(columns.dur_ns[device.rows].max())
        if not known.any() or left_ns > max(longest_ns, (end - begin) // 100):
            return np.zeros(len(calls), dtype=np.bool_)
        queues, count = np.unique(columns.queue[device.rows[known]], return_counts=True)
        busiest = known & (columns.queue[device.rows] == queues[np.argmax(count)])
        after &= columns.ts_ns[calls] > columns.ts_ns[device.launch[busiest]].max()
    return after


def _between_steps(columns: Columns, devices: list[Operations], steps: list[Step]) -> Loss | None:
    """Operations launched after the first step began and before the last ended, but in none."""
    if not steps:
        return None
    launched = between = 0
    for device in devices:
        called = columns.ts_ns[device.launch[device.launch != UNLAUNCHED]]
        called = called[(called >= steps[0].start_ns) & (called < steps[-1].end_ns)]
        at = np.searchsorted([step.start_ns for step in steps], called, side="right") - 1
        launched += len(called)
        between += int((called >= np.array([step.end_ns for step in steps])[at]).sum())
    if between <= MOST_LOST * launched:
        return None
    text = (
        f"{between:,} of {launched:,} device operations are launched between the marked steps, so counts, phases and "
        "collectives of a step leave them out"
    )
    return Loss(code="work-outside-steps", fatal=False, text=text)


def _outside_steps(columns: Columns, devices: list[Operations], steps: list[Step]) -> Loss | None:
    """Operations that steps launched and that run when all steps are over: after the device was idle for
    longer than all of them took, or where no operation runs while they last.
    """
    if not steps:
        return None
    begin, end = steps[0].start_ns, steps[-1].end_ns
    launched = outside = 0
    for device in devices:
        known = device.launch != UNLAUNCHED
        called = columns.ts_ns[device.launch]
        inside = known & (called >= begin) & (called < end)
        start, over = columns.ts_ns[device.rows], columns.ends(device.rows)
        launched += int(inside.sum())
        if not ((start < end) & (over > begin)).any():
            pending = start[inside] - called[inside]
            outside += int(inside.sum()) if len(pending) and pending.min() > _IDLE_NS else 0
            continue
        order = np.argsort(start, kind="stable")
        before = np.maximum(np.maximum.accumulate(np.append(end, over[order][:-1])), end)
        (late,) = np.nonzero(start[order] - before > max(end - begin, _IDLE_NS))
        if len(late):
            outside += int((inside & (start >= start[order][late[0]])).sum())
    if outside <= MOST_LOST * launched:
        return None
    what = f"{outside:,} of {launched:,} device operations launched in steps run outside all steps"
    if all(_is_waited_for(columns, device) for device in devices):
        text = f"{what}: the device still ran earlier steps while these were launched"
        return Loss(code="device-behind-steps", fatal=True, text=text)
    text = f"{what}: the clocks of host and device disagree"
    return Loss(code="device-events-outside-steps", fatal=True, text=text)


def _is_waited_for(columns: Columns, device: Operations) -> bool:
    """Whether a call waits for a device until the last of its operations ends, by the clocks of both."""
    waits = columns.rows(LAUNCH_CATEGORIES, WAIT_NAME.search)
    last_ns, end_ns = device.span_ns[1], columns.ends(waits)
    return bool(((columns.ts_ns[waits] < last_ns) & (end_ns >= last_ns) & (end_ns < last_ns + _WOKEN_NS)).any())
