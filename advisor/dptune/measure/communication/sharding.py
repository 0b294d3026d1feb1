"""What sharding parameters takes of the steps: FSDP's hooks, what they launch, its collectives, and the optimizer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dptune.measure.communication.purposes import issuers, sharding_ranges
from dptune.measure.device.phases import OPTIMIZER, DeviceTimeline, Phased, bounds
from dptune.measure.host.enclosing import Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measured import ShardingFigures
from dptune.trace.columns import Columns
from dptune.trace.kernels import Work

NOT_SHARDED = "the trace has no ranges of FSDP's hooks"

_AGAIN = re.compile(r"FSDP::(pre_backward|backward_prefetch)|FullyShardedDataParallel\._pre_backward")
_REDUCES = re.compile(r"FSDP::post_backward_reduce\b|FullyShardedDataParallel\._post_backward_hook")


def sharding(spent: Sequence[DeviceTimeline], phased: Phased) -> ShardingFigures | None:
    """The time of FSDP over the steps of every rank; None where no trace shows its hooks.

    What the hooks launch counts as long as it runs on the device, and the hooks themselves where nothing is computed
    meanwhile. The optimizer is with them: it updates sharded parameters through DTensor, which costs time of its own.
    On a GPU, collectives overlapped by compute are not counted, except where parameters are gathered again and where
    gradients are reduced: without these, the collectives after them start earlier.
    """
    hooks_ns = communication_ns = 0
    most, most_units, most_again, most_reduced, found = 0.0, 0.0, 0.0, 0.0, False
    for at, (view, device, timeline) in enumerate(spent):
        columns, operations = view.columns, device.operations
        begin, end = bounds(device.windows)
        steps_ns = max(1, int((end - begin).sum()))
        ranges = sharding_ranges(columns)
        found |= bool(len(ranges))
        by = issuers(view, device)
        hooks, again = _spans(columns, ranges), ranges[columns.named(_AGAIN.match, ranges)]
        reducing = ranges[columns.named(_REDUCES.match, ranges)]
        issued, sends = _inside(columns, ranges, by), operations.work == Work.COMMUNICATION
        sent = _spans(columns, operations.rows[issued & sends])
        computed = timeline.classes["compute_ns"]
        held_up = sent if operations.on_cpu else sent - computed
        units = held_up | _spans(columns, operations.rows[issued & ~sends]) | (hooks - computed)
        updates = _spans(columns, operations.rows[phased.operations[at] == OPTIMIZER])
        held = units | updates | (phased.hosts[view.rank].optimizing - computed)
        gathered, reduced = (
            _spans(columns, operations.rows[_inside(columns, some, by)]) | (_spans(columns, some) - computed)
            for some in (again, reducing)
        )
        hooks_ns += int(hooks.lengths(begin, end).sum())
        communication_ns += int(sent.lengths(begin, end).sum())
        most = max(most, int(held.lengths(begin, end).sum()) / steps_ns)
        most_units = max(most_units, int(units.lengths(begin, end).sum()) / steps_ns)
        most_again = max(most_again, int(gathered.lengths(begin, end).sum()) / steps_ns)
        most_reduced = max(most_reduced, int(reduced.lengths(begin, end).sum()) / steps_ns)
    if not found:
        return None
    return ShardingFigures(
        hooks_ns=hooks_ns,
        communication_ns=communication_ns,
        most_share=most,
        units_most_share=most_units,
        again_most_share=most_again,
        reduced_most_share=most_reduced,
    )


def _inside(columns: Columns, ranges: Ints, calls: Ints) -> Mask:
    launched: Mask = calls != UNLAUNCHED
    return launched & Ranges.of_rows(columns, ranges).hold(columns.thread[calls], columns.ts_ns[calls])


def _spans(columns: Columns, rows: Ints) -> Intervals:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))
