"""What each device of a rank ran, by class.

On a GPU an operation is a kernel, copy or memset. On a CPU run the device is the compute threads: compute is the
union of operators there, without loading data and without collectives; communication is gloo's own ranges. Most
lie on gloo's worker threads, whose operators are not the script's; `gloo:send` and `gloo:recv` on the calling thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dptune.measure.host.launches import UNLAUNCHED, launch_rows
from dptune.measure.intervals import NOTHING, Intervals, Ints, Mask
from dptune.trace.columns import Columns
from dptune.trace.events import Trace
from dptune.trace.kernels import (
    DEVICE_CATEGORIES,
    FOREIGN_DEVICE_CATEGORIES,
    HOST_COLLECTIVE_PREFIXES,
    KERNEL_CATEGORIES,
    LAUNCH_CATEGORIES,
    LAUNCH_NAME,
    LOADER_NAME,
    MTIA_CATEGORIES,
    OPERATOR_CATEGORIES,
    RANGE_CATEGORIES,
    STEP_NAME,
    Work,
    work_of,
)
from dptune.trace.schema import NONE, integer

# Collectives as the calling thread sees them: handing them over, or waiting for them. Not arithmetic.
COLLECTIVE_CALL = re.compile(r"^_?c10d(_functional)?::|^record_param_comms$")
# Ranges that torch 1.x and 2.0 wrote as operators although they enclose Python too.
ENCLOSING = re.compile(r"^(ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.|DistributedDataParallel\.forward$)")
# What only threads of the script do, or autograd's for it.
_SCRIPT = re.compile(rf"{ENCLOSING.pattern}|{COLLECTIVE_CALL.pattern}|^autograd::engine::")
_POINT_TO_POINT = re.compile(r"^(gloo|mpi|ucc):(send|recv)")


@dataclass(frozen=True, eq=False)
class Operations:
    """The operations of one device. `rows` index the trace's columns and `work` is the class of each (int64).

    `launch` is the row of the call that launched each, UNLAUNCHED where there is none, as on a CPU.

    `time` is the union of each class; `span_ns` the first start and the last end. `kernels` is 0 on a CPU.
    """

    device: str
    rows: Ints
    work: Ints
    launch: Ints
    time: dict[Work, Intervals]
    span_ns: tuple[int, int]
    kernels: int

    @property
    def on_cpu(self) -> bool:
        """Whether the device is the host's own threads."""
        return self.device == "cpu"


def operations(trace: Trace) -> list[Operations]:
    """The devices of a trace that ran anything; none where the device's events were not recorded."""
    columns = trace.columns
    rows = np.flatnonzero(columns.of_category(DEVICE_CATEGORIES))
    if len(rows):
        device = _device_index(columns, rows)
        return [_gpu(columns, rows[device == index], int(index)) for index in np.unique(device)]
    if uses_device(columns):
        return []
    return _cpu(columns)


def uses_device(columns: Columns) -> bool:
    """Whether the process gave work to a device other than the CPU, recorded or not."""
    launches = columns.of_category(LAUNCH_CATEGORIES) & columns.named(LAUNCH_NAME.search)
    return bool(launches.any() or columns.of_category(DEVICE_CATEGORIES | FOREIGN_DEVICE_CATEGORIES).any())


def loader_ranges(trace: Trace) -> Intervals:
    """When the script waits inside its DataLoader: on the threads that mark the steps, on any where none does."""
    columns = trace.columns
    ranges = columns.of_category(RANGE_CATEGORIES)
    loading, marks = ranges & columns.named(LOADER_NAME.match), ranges & columns.named(STEP_NAME.match)
    if marks.any():
        thread = columns.thread
        loading &= np.isin(thread, thread[marks])
    return _union(columns, loading)


def _gpu(columns: Columns, rows: Ints, index: int) -> Operations:
    pair, at = np.unique(
        columns.category_id[rows].astype(np.int64) * len(columns.names) + columns.name_id[rows], return_inverse=True
    )
    kinds = [
        work_of(columns.categories[one // len(columns.names)], columns.names[one % len(columns.names)]) for one in pair
    ]
    work = np.array(kinds, dtype=np.int64)[at]
    kernels = int(columns.of_category(KERNEL_CATEGORIES)[rows].sum())
    maker = "mtia" if columns.categories[columns.category_id[rows[0]]] in MTIA_CATEGORIES else "cuda"
    time = {kind: _union(columns, rows[work == kind]) for kind in Work}
    return Operations(f"{maker}:{index}", rows, work, launch_rows(columns, rows), time, _span(columns, rows), kernels)


def _device_index(columns: Columns, rows: Ints) -> Ints:
    """The device of each row; files before 2021 name it only as the process."""
    named = columns.device[rows]
    process = np.array([max(integer(label), 0) for label in columns.labels], dtype=np.int64)
    return np.where(named != NONE, named, process[columns.pid_id[rows]])


def _cpu(columns: Columns) -> list[Operations]:
    gloo = columns.named(lambda name: name.startswith(HOST_COLLECTIVE_PREFIXES))
    thread = columns.thread
    operator = columns.of_category(OPERATOR_CATEGORIES) & ~gloo & ~np.isin(thread, _gloo_workers(columns, gloo, thread))
    operator &= ~columns.named(ENCLOSING.match)
    call = operator & columns.named(COLLECTIVE_CALL.match)
    loading = columns.of_category(RANGE_CATEGORIES) & columns.named(LOADER_NAME.match)
    starts, ends = [], []
    computing, other = _by_thread(thread, operator & ~call), _by_thread(thread, call | loading | gloo)
    for number, rows in computing.items():
        own = _union(columns, rows)
        if number in other:
            own -= _union(columns, other[number])
        starts.append(own.start_ns)
        ends.append(own.end_ns)
    compute = Intervals.union(np.concatenate(starts), np.concatenate(ends)) if starts else NOTHING
    rows = np.flatnonzero((operator & ~call) | gloo)
    if not len(rows):
        return []
    work = np.where(gloo[rows], int(Work.COMMUNICATION), int(Work.COMPUTE)).astype(np.int64)
    time = {Work.COMPUTE: compute, Work.COMMUNICATION: _union(columns, gloo), Work.COPY: NOTHING, Work.MEMSET: NOTHING}
    launch = np.full(len(rows), UNLAUNCHED, dtype=np.int64)
    return [Operations("cpu", rows, work, launch, time, _span(columns, rows), 0)]


def _by_thread(thread: Ints, wanted: Mask) -> dict[int, Ints]:
    """The wanted rows of each thread."""
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(thread[rows], kind="stable")]
    numbers, first = np.unique(thread[rows], return_index=True)
    return dict(zip(numbers.tolist(), np.split(rows, first[1:]), strict=True)) if len(rows) else {}


def _gloo_workers(columns: Columns, gloo: Mask, thread: Ints) -> Ints:
    """The threads of gloo itself: they run its collectives, and of operators at most the callbacks after them.

    Not those that mark steps, load, call collectives or run autograd, nor those that only send and receive.
    """
    script = columns.of_category(RANGE_CATEGORIES) & columns.named(_SCRIPT.match)
    collective = gloo & ~columns.named(_POINT_TO_POINT.match)
    return np.setdiff1d(thread[collective], thread[script])


def _union(columns: Columns, rows: Ints | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Intervals:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))


def _span(columns: Columns, rows: Ints) -> tuple[int, int]:
    return int(columns.ts_ns[rows].min()), int(columns.ends(rows).max())
