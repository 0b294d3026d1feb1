"""A trace -> the record of its rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from operator import or_

import numpy as np

from dptune.errors import TraceError
from dptune.measure.communication.calls import Call, calls
from dptune.measure.communication.collectives import inside, shaped_calls
from dptune.measure.communication.mesh_groups import in_mesh
from dptune.measure.complete import ran_by_name
from dptune.measure.device.accounts import device_timeline
from dptune.measure.device.timeline import Split, Timeline
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.threads import Host
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.outliers.devices import kernel_times
from dptune.measure.records.parts import DeviceRecord, RankRecord
from dptune.measure.steps.tails import queued_until_ns
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView, view
from dptune.runfile.facts import Facts
from dptune.trace.events import Trace
from dptune.trace.kernels import OPTIMIZER_KERNEL_NAME, Work
from dptune.trace.loading.reading import Digest


def recording(rank: int, facts: Facts | None, read_detailed: Callable[[], Trace] | None) -> Digest:
    """The function that makes the record of a rank with these facts from its trace, where that is read."""
    return partial(_recorded, rank, facts, read_detailed)


def _recorded(rank: int, facts: Facts | None, read_detailed: Callable[[], Trace] | None, trace: Trace) -> RankView:
    return recorded(view(rank, trace, facts.window("light") if facts else None), facts, read_detailed)


def recorded(
    rank_view: RankView, facts: Facts | None = None, read_detailed: Callable[[], Trace] | None = None
) -> RankView:
    """The same rank without the columns of its trace: what comparing ranks takes of it is in its records."""
    kept, found = [], []
    for device in rank_view.devices:
        of_device = in_mesh(rank_view, device, calls(rank_view, device), facts)
        found += inside(of_device)
        kept.append(_device(rank_view, device, of_device))
    shaped: list[Call] = []
    if read_detailed is not None and any(call.message_bytes is None for call in found):
        try:
            shaped = shaped_calls(rank_view.rank, read_detailed())
        except TraceError:  # the sizes stay missing, as where the detailed window was not recorded
            shaped = []
    return replace(
        rank_view,
        trace=replace(rank_view.trace.head(), base_ns=rank_view.base_ns),
        host=Host(rank_view.host.loading, NOTHING, NOTHING, NOTHING),
        devices=kept,
        record=RankRecord(ran_by_name(rank_view), tuple(shaped), kernel_times(rank_view)),
    )


def _device(rank_view: RankView, device: DeviceView, of_device: list[Call]) -> DeviceView:
    columns, operations = rank_view.columns, device.operations
    updates = columns.named(OPTIMIZER_KERNEL_NAME.search, operations.rows)
    _, first = np.unique(device.launched_in[updates], return_index=True)
    updating = np.zeros(len(operations.rows), dtype=np.bool_)
    updating[np.flatnonzero(updates)[first]] = True
    kept = np.flatnonzero((operations.work == Work.COMMUNICATION) | updating)
    place = {row: at for at, row in enumerate(operations.rows[kept].tolist())}
    spent = device_timeline(rank_view, device, Split())
    cuts = _cuts(device, spent, of_device)
    classes = {name: coarse(time, cuts) for name, time in spent.classes.items() if not name.startswith("exposed_")}
    record = DeviceRecord(
        operations=len(operations.rows),
        calls=tuple(of_device),
        places=np.array([place[call.row] for call in of_device], dtype=np.int64),
        updating=updating[kept],
        exposed=spent.classes["exposed_unsplit_ns"],
        classes=classes,
        communication=coarse(spent.communication, cuts),
        queued_ns={
            window.start_ns: queued_until_ns(rank_view, replace(device, windows=device.windows[at:]))
            for at, window in enumerate(device.windows)
        },
    )
    ran = coarse(reduce(or_, operations.time.values()), cuts)
    kept_operations = replace(
        operations,
        rows=np.arange(len(kept), dtype=np.int64),
        work=operations.work[kept],
        launch=np.full(len(kept), UNLAUNCHED, dtype=np.int64),
        time={work: ran if work == Work.COMPUTE else NOTHING for work in Work},
    )
    return replace(device, operations=kept_operations, launched_in=device.launched_in[kept], record=record)


def _cuts(device: DeviceView, spent: Timeline, of_device: list[Call]) -> Ints:
    """The moments up to which times are asked for."""
    moments = [spent.start_ns, spent.end_ns, *device.operations.span_ns]
    moments += [moment for window in device.windows for moment in (window.start_ns, window.end_ns)]
    moments += [call.start_ns for call in of_device if call.step != OUTSIDE]
    return np.unique(np.array(moments, dtype=np.int64))


def coarse(time: Intervals, cuts: Ints) -> Intervals:
    """A set of at most one interval between two cuts, with as much time before each cut as the given one."""
    lengths = time.lengths(cuts[:-1], cuts[1:])
    filled = lengths > 0
    start = cuts[:-1][filled]
    return Intervals.union(start, start + lengths[filled])
