"""Why a device was idle: each nanosecond by what the host did, and by when the next operation was launched.

The occupant of a gap is not its cause: the question is what kept the operation that ends the gap from beginning. Before
its launch, the script's threads tell; after it, the device does.
"""

from __future__ import annotations

import numpy as np

from dptune.measure.device.operations import Operations
from dptune.measure.host.launches import UNLAUNCHED, ending
from dptune.measure.host.threads import Host
from dptune.measure.intervals import NOTHING, Intervals
from dptune.measured import IDLE_CAUSES
from dptune.trace.columns import Columns

LATENCY_NS = 1_000_000  # an idle device takes microseconds to start what is launched: longer, something else holds it


def causes(idle: Intervals, columns: Columns, operations: Operations, host: Host) -> dict[str, Intervals]:
    """The idle time of a device in disjoint sets, one for each cause, by the fields of `Account`.

    On a GPU, for each gap: from the end of the launch of the operation that ends it, `dependency` where that launch was
    over before the gap began or more than a millisecond before its end, else `launch` (its latency). Before: `input`,
    `gc`, `malloc` (in a driver call that allocates or frees device memory), `sync` (held by a call that waits for the
    device, or working off what such a call in this gap had kept it from), `launch` (any other operator or call of the
    runtime), else `host`; where no launch was recorded, what the host does not tell is `unexplained`, and so is what
    would be `host` in a trace without any event of the script, as with `activities=[ProfilerActivity.CUDA]`.

    On a CPU: `input`, `gc`, `sync` (in a call of a collective that does not run, or that waits for a
    reply of torch.distributed.rpc), else `host`.
    """
    found = dict.fromkeys(IDLE_CAUSES, NOTHING)
    rest = idle
    launched = idle
    if not operations.on_cpu:
        queued, latency, launched = _launches(idle, columns, operations)
        found["dependency"], found["launch"] = queued, latency
        rest = idle - (queued | latency)
    doings = {"input": host.loading, "gc": host.collecting, "malloc": NOTHING, "sync": host.held}
    if not operations.on_cpu:
        doings["malloc"] = host.allocating
    for cause, doing in doings.items():
        found[cause] = rest & doing
        rest -= doing
    if not operations.on_cpu:
        working = rest & host.working
        after = working & _tails(idle, host.held)
        found["sync"] |= after
        found["launch"] |= working - after
        rest -= working
    found["host"] = rest & launched if host.recorded else NOTHING
    found["unexplained"] = rest - found["host"]
    return {f"{cause}_idle_ns": found[cause] for cause in IDLE_CAUSES}


def _launches(idle: Intervals, columns: Columns, operations: Operations) -> tuple[Intervals, Intervals, Intervals]:
    """Of each gap the part in which its next operation was queued, and its latency; and the gaps known."""
    begin, end = idle.start_ns, idle.end_ns
    _, launch = ending(idle, columns, operations.rows, operations.launch)
    known = launch != UNLAUNCHED
    call_end = columns.ends(launch)
    since = np.clip(call_end, begin, end)
    waited = (call_end <= begin) | (end - call_end > LATENCY_NS)
    queued, latency = known & waited, known & ~waited
    return (
        Intervals.union(since[queued], end[queued]),
        Intervals.union(since[latency], end[latency]),
        Intervals.union(begin[known], end[known]),
    )


def _tails(idle: Intervals, held: Intervals) -> Intervals:
    """Of each gap in which the host was let go by a blocking call, what comes after that."""
    begin, end = idle.start_ns, idle.end_ns
    if not len(held):
        return NOTHING
    at = np.searchsorted(held.end_ns, end, side="right") - 1
    freed = held.end_ns[np.maximum(at, 0)]
    drained = (at >= 0) & (freed > begin)
    return Intervals.union(freed[drained], end[drained])
