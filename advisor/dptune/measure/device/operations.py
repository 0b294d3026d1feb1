"""What each device of a rank ran, by class.

On a GPU an operation is a kernel, copy or memset. On a CPU run the device is the compute threads: compute is the union
of operators there, without loading data and without collectives; communication is gloo's own ranges. Most lie on gloo's
worker threads, whose operators are not the script's; `gloo:send` and `gloo:recv` on the calling thread. What
torch.distributed.rpc waits for is no compute. A Function of the script's own that calls a collective waits for it: of
such a one, and of what runs it, only the operators inside are compute. The same holds for the hooks of fully_shard that
gather or reduce: on a CPU they wait, also where autograd calls them from an operator of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.communicating import launched_by_collectives
from dptune.measure.host.launches import UNLAUNCHED, launch_rows
from dptune.measure.intervals import NOTHING, Intervals, Ints, Mask
from dptune.measure.once import once_for_each
from dptune.trace.columns import NONE, Columns
from dptune.trace.events import Trace
from dptune.trace.kernels import (
    DEVICE_CATEGORIES,
    HOST_COLLECTIVE_PREFIXES,
    KERNEL_CATEGORIES,
    LAUNCH_CATEGORIES,
    LOADER_NAME,
    OPERATOR_CATEGORIES,
    RANGE_CATEGORIES,
    STEP_NAME,
    Work,
    work_of,
)
from dptune.trace.kineto.schema import integer
from dptune.trace.vendors import LAUNCH_NAME, Vendor, unread, vendor_of

# Collectives as the calling thread sees them: handing them over, or waiting for them. Not arithmetic.
COLLECTIVE_CALL = re.compile(r"^_?c10d(_functional)?::|^record_param_comms$")
# Ranges that torch 1.x and 2.0 wrote as operators although they enclose Python too, or wait for another process: those
# of torch.distributed.rpc last until the reply is there.
ENCLOSING = re.compile(
    r"^(ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.|DistributedDataParallel\.forward$"
    r"|(?:rpc_(?:sync|async|remote)|to_here)#|aten::(?:rpc_(?:sync|async|remote)|wait)$)"
)
# An autograd Function, by the name of its class: operators of torch have a namespace. What was compiled computes in
# kernels that are no operators.
_FUNCTION = re.compile(r"^(?!CompiledFunction)[^:]+$")
# Torch before 1.10 wrote ranges of the script as operators. Operators have a namespace, nodes a name with Backward.
_OLD = frozenset({"Operator"})
_OLD_RANGE = re.compile(r"^(?!.*Backward)[^:]+$")
# torch.compile at work: what it traces are operators, too, on tensors without numbers.
COMPILING = re.compile(r" \(dynamo_timed\)$")
# What only threads of the script do, or autograd's for it.
_SCRIPT = re.compile(rf"{ENCLOSING.pattern}|{COLLECTIVE_CALL.pattern}|^autograd::engine::")
_SHARD_HOOK = re.compile(
    r"FSDP::(all_gather|post_backward_reduce)(?: \(.*\))?$"
    r"|FullyShardedDataParallel\._(pre_forward|pre_backward_hook|post_backward_hook)$"
)
_POINT_TO_POINT = re.compile(r"^(gloo|mpi|ucc):(send|recv)")

MOST_LOST = 0.01  # of launches without an operation, or of operations of an impossible time, in a trace to be trusted
SLACK_NS = 1_000_000  # converting the device's clock to the host's is off by up to 0.1 ms in public traces
_FAR_NS = 1_000_000_000


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
    rows = columns.rows(DEVICE_CATEGORIES)
    if len(rows):
        rows = _dated(columns)
        device, maker = _device_index(columns, rows), vendor(trace)
        described = trace.collectives.row[trace.collectives.kind != NONE]
        return [
            _gpu(columns, rows[device == index], f"{maker.torch}:{index}", described) for index in np.unique(device)
        ]
    if uses_device(columns):
        return []
    return _cpu(columns)


@once_for_each
def misdated(columns: Columns) -> tuple[Mask, Mask, Mask]:
    """Which operations of devices have a time that cannot be: 0 where all else lies far later; well before their
    launch; beyond.

    Beyond: still running `SLACK_NS` after the next one on their stream has begun. Streams run in order: in 97 public
    traces no two operations of one stream overlap by more than 42 us.
    """
    rows = columns.rows(DEVICE_CATEGORIES)
    start = columns.ts_ns[rows]
    others = columns.ts_ns[columns.ts_ns > 0]
    far = len(others) > 0 and int(others.min()) > max(int(others.max() - others.min()), _FAR_NS)
    zero = np.asarray((start <= 0) & far, dtype=np.bool_)
    launch = launch_rows(columns, rows)
    early = (launch != UNLAUNCHED) & ~zero & (start < columns.ts_ns[launch] - SLACK_NS)
    return zero, np.asarray(early, dtype=np.bool_), _overlong(columns, rows, zero | early)


def _overlong(columns: Columns, rows: Ints, wrong: Mask) -> Mask:
    (at,) = np.nonzero(~wrong)
    at = at[np.lexsort((columns.ts_ns[rows[at]], columns.queue[rows[at]]))]
    ordered_rows = rows[at]
    beyond = (columns.ends(ordered_rows[:-1]) > columns.ts_ns[ordered_rows[1:]] + SLACK_NS) & (
        columns.queue[ordered_rows[:-1]] == columns.queue[ordered_rows[1:]]
    )
    overlong = np.zeros(len(rows), dtype=np.bool_)
    overlong[at[:-1][beyond]] = True
    return overlong


def _dated(columns: Columns) -> Ints:
    """The operations without those of an impossible time; all of them where those are too many to be left out."""
    rows, wrong = columns.rows(DEVICE_CATEGORIES), np.logical_or.reduce(misdated(columns))
    return rows[~wrong] if wrong.sum() <= MOST_LOST * len(rows) else rows


def uses_device(columns: Columns) -> bool:
    """Whether the process gave work to a device other than the CPU, recorded or not."""
    launches = columns.rows(LAUNCH_CATEGORIES, LAUNCH_NAME.search)
    return (
        len(launches) + len(columns.rows(DEVICE_CATEGORIES)) > 0
        or unread(columns.categories, columns.names) is not None
    )


def vendor(trace: Trace) -> Vendor:
    """The maker of the devices of a trace that holds work of any."""
    columns = trace.columns
    calls = {columns.names[at] for at in np.unique(columns.name_id[columns.rows(LAUNCH_CATEGORIES)]).tolist()}
    return vendor_of(columns.categories, sorted(calls), [device.name for device in trace.devices])


def loader_ranges(trace: Trace) -> Intervals:
    """When the script waits inside its DataLoader: on the threads that mark the steps, on any where none does."""
    columns = trace.columns
    loading, marks = (columns.rows(RANGE_CATEGORIES, name.match) for name in (LOADER_NAME, STEP_NAME))
    if len(marks):
        loading = loading[np.isin(columns.thread[loading], columns.thread[marks])]
    return _union(columns, loading)


def old_ranges(columns: Columns, rows: Ints) -> Mask:
    """Which operators are ranges of the script; none where operators have no namespace, as before torch 1.7."""
    if not any(name.startswith("aten::") for name in columns.names):
        return np.zeros(len(rows), dtype=np.bool_)
    return np.asarray(columns.of_category(_OLD, rows) & columns.named(_OLD_RANGE.match, rows), dtype=np.bool_)


def _gpu(columns: Columns, rows: Ints, device: str, described: Ints) -> Operations:
    """`described`: the rows of events that name their collective: such a kernel communicates, whatever its name."""
    pair, at = np.unique(
        columns.category_id[rows].astype(np.int64) * len(columns.names) + columns.name_id[rows], return_inverse=True
    )
    kinds = [
        work_of(columns.categories[code // len(columns.names)], columns.names[code % len(columns.names)])
        for code in pair
    ]
    launch = launch_rows(columns, rows)
    work = np.array(kinds, dtype=np.int64)[at]
    work[launched_by_collectives(columns, rows, launch)] = int(Work.COMMUNICATION)
    is_kernel = columns.of_category(KERNEL_CATEGORIES, rows)
    work[is_kernel & np.isin(rows, described)] = int(Work.COMMUNICATION)
    kernels = int(is_kernel.sum())
    time = {kind: _union(columns, rows[work == kind]) for kind in Work}
    return Operations(device, rows, work, launch, time, _span(columns, rows), kernels)


def _device_index(columns: Columns, rows: Ints) -> Ints:
    """The device of each row; files before 2021 name it only as the process."""
    named = columns.device[rows]
    process = np.array([max(integer(label), 0) for label in columns.labels], dtype=np.int64)
    return np.where(named != NONE, named, process[columns.pid_id[rows]])


def _cpu(columns: Columns) -> list[Operations]:
    thread, gloo = columns.thread, columns.rows(named=_is_gloo)
    operators = columns.rows(OPERATOR_CATEGORIES, lambda name: not _is_gloo(name) and not ENCLOSING.match(name))
    operators = operators[~np.isin(thread[operators], _gloo_workers(columns, gloo))]
    operators = operators[~old_ranges(columns, operators)]
    compiling = columns.rows(OPERATOR_CATEGORIES, COMPILING.search)
    operators = operators[~_inside(columns, operators, compiling)]
    calling = columns.named(COLLECTIVE_CALL.match, operators)
    operators, calls = operators[~calling], operators[calling]
    loading = columns.rows(RANGE_CATEGORIES, LOADER_NAME.match)
    starts, ends = [], []
    named = operators[columns.named(_FUNCTION.match, operators)]
    functions = named[_enclosing(columns, named, calls)]
    arithmetic = operators[~_enclosing(columns, operators, functions)]
    computing, other = (
        _by_thread(thread, arithmetic),
        _by_thread(thread, np.concatenate((calls, loading, gloo, compiling))),
    )
    hooks = columns.rows(RANGE_CATEGORIES, _SHARD_HOOK.match)
    waiting = _by_thread(thread, hooks)
    packing = _by_thread(thread, arithmetic[_inside(columns, arithmetic, hooks)])
    for number, rows in computing.items():
        thread_time = _union(columns, rows)
        if number in waiting:
            waits = _union(columns, waiting[number])
            thread_time -= waits - _union(columns, packing[number]) if number in packing else waits
        if number in other:
            thread_time -= _union(columns, other[number])
        starts.append(thread_time.start_ns)
        ends.append(thread_time.end_ns)
    compute = Intervals.union(np.concatenate(starts), np.concatenate(ends)) if starts else NOTHING
    rows = np.union1d(operators, gloo)
    if not len(rows):
        return []
    work = np.where(np.isin(rows, gloo), int(Work.COMMUNICATION), int(Work.COMPUTE)).astype(np.int64)
    time = {Work.COMPUTE: compute, Work.COMMUNICATION: _union(columns, gloo), Work.COPY: NOTHING, Work.MEMSET: NOTHING}
    launch = np.full(len(rows), UNLAUNCHED, dtype=np.int64)
    return [Operations("cpu", rows, work, launch, time, _span(columns, rows), 0)]


def _enclosing(columns: Columns, operators: Ints, others: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the operators have one of the others inside of them, on their thread."""
    within = np.zeros(len(operators), dtype=np.bool_)
    thread = columns.thread[operators]
    for number, thread_rows in _by_thread(columns.thread, others).items():
        on_it = np.flatnonzero(thread == number)
        thread_rows = thread_rows[
            np.lexsort((-columns.ends(thread_rows), columns.ts_ns[thread_rows]))
        ]  # of those that begin at once the outer first
        begun, ended = columns.ts_ns[thread_rows], columns.ends(thread_rows)
        starts, ends = columns.ts_ns[operators[on_it]], columns.ends(operators[on_it])
        first, last = np.searchsorted(begun, starts), np.searchsorted(begun, ends) - 1
        within[on_it] = (first <= last) & (ended[np.maximum(last, 0)] <= ends)
    return within


def _inside(columns: Columns, operators: Ints, others: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the operators lie in one of the others, or are one, on their thread."""
    within = np.zeros(len(operators), dtype=np.bool_)
    for number, thread_rows in _by_thread(columns.thread, others).items():
        on_it = columns.thread[operators] == number
        within[on_it] = _union(columns, thread_rows).hold(columns.ts_ns[operators[on_it]])
    return within


def _is_gloo(name: str) -> bool:
    return name.startswith(HOST_COLLECTIVE_PREFIXES)


def _by_thread(thread: Ints, rows: Ints) -> dict[int, Ints]:
    """Those of the rows that are of each thread."""
    rows = rows[np.argsort(thread[rows], kind="stable")]
    numbers, first = np.unique(thread[rows], return_index=True)
    return dict(zip(numbers.tolist(), np.split(rows, first[1:]), strict=True)) if len(rows) else {}


def _gloo_workers(columns: Columns, gloo: Ints) -> Ints:
    """The threads of gloo itself: they run its collectives, and of operators at most the callbacks after them.

    Not those that mark steps, load, call collectives or run autograd, nor those that only send and receive.
    """
    script = columns.rows(RANGE_CATEGORIES, _SCRIPT.match)
    collective = gloo[~columns.named(_POINT_TO_POINT.match, gloo)]
    return np.setdiff1d(columns.thread[collective], columns.thread[script])


def _union(columns: Columns, rows: Ints) -> Intervals:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))


def _span(columns: Columns, rows: Ints) -> tuple[int, int]:
    return int(columns.ts_ns[rows].min()), int(columns.ends(rows).max())
