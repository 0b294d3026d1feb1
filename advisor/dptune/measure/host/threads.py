"""What the threads of the script did: loading, collecting garbage, held by a blocking call, or preparing work."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.operations import COLLECTIVE_CALL, ENCLOSING, Operations, loader_ranges, old_ranges
from dptune.measure.host.blocked import NEVER, Blocked, blocked
from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.runfile.window import Window
from dptune.trace.columns import Columns
from dptune.trace.events import Trace
from dptune.trace.kernels import (
    COLLECTION_NAME,
    LAUNCH_CATEGORIES,
    OPERATOR_CATEGORIES,
    RANGE_CATEGORIES,
    STEP_NAME,
    Work,
    waits,
)
from dptune.trace.vendors import MEMORY_NAME

_ENCLOSING_OR_CALL = re.compile(rf"{ENCLOSING.pattern}|{COLLECTIVE_CALL.pattern}")
# Calls of torch.distributed.rpc and of futures that return with the reply, as ranges and as Python functions.
_RPC_WAIT = re.compile(
    r"^(?:rpc_sync|to_here)#|^aten::(?:rpc_sync|wait)$"
    r"|(?:^|/)torch/(?:distributed/rpc/api|futures/__init__)\.py\(\d+\): (?:rpc_sync|wait|wait_all)$"
    r"|^<built-in method (?:wait|to_here) of \S*(?:Future|RRef)\b"
)
_RPC_REPLY = re.compile(r"^(?:rpc_async|rpc_remote)#")  # calls that return at once; the range lasts until the reply


@dataclass(frozen=True, eq=False)
class Host:
    """Sets of time in which the script's threads did each. `held`: inside a call that waits for a device or a peer.
    `allocating`: inside a driver call that allocates or frees device memory.

    `blocked`: which calls wait for a device, and for what there. `recorded`: whether ranges, operators or Python
    functions were recorded, so that time outside of them is known to be in none.
    """

    loading: Intervals
    collecting: Intervals
    held: Intervals
    working: Intervals
    blocked: Blocked = NEVER
    allocating: Intervals = NOTHING
    recorded: bool = True


def host(trace: Trace, devices: list[Operations], recorded: Window | None = None) -> Host:
    """The script's threads are those that mark its steps, and those that launch kernels.

    `recorded` is what the recording says of the window that the trace is of: full collections of garbage among it.
    """
    columns = trace.columns
    thread = columns.thread
    marks = columns.rows(RANGE_CATEGORIES, STEP_NAME.match)
    threads = np.unique(
        np.concatenate([thread[marks], *(thread[_launches(device)] for device in devices if not device.on_cpu)])
    )
    found = NEVER
    if any(operations.on_cpu for operations in devices):
        held = _union(columns, columns.rows(OPERATOR_CATEGORIES, COLLECTIVE_CALL.match))
        held |= _union(columns, columns.rows(RANGE_CATEGORIES | PYTHON_CATEGORIES, _RPC_WAIT.search))
        calls = columns.rows(LAUNCH_CATEGORIES)
        operators = columns.rows(OPERATOR_CATEGORIES, lambda name: not _ENCLOSING_OR_CALL.match(name))
        if not len(columns.rows(PYTHON_CATEGORIES)):
            held |= _until_replies(columns, operators)
    else:
        found = blocked(columns, devices, threads)
        held = found.time
        calls = columns.rows(LAUNCH_CATEGORIES, lambda name: not _waits(name))
        operators = columns.rows(OPERATOR_CATEGORIES, lambda name: not ENCLOSING.match(name))
        operators = operators[~old_ranges(columns, operators)]
    working = np.concatenate((calls, operators))
    working = working[np.isin(thread[working], threads)]
    allocating = columns.rows(LAUNCH_CATEGORIES, MEMORY_NAME.search)
    collecting = _union(columns, columns.rows(named=COLLECTION_NAME.match))
    if recorded is not None and recorded.collections_ns:
        start, end = np.array(recorded.collections_ns, dtype=np.int64).T - trace.base_ns
        collecting |= Intervals.union(start, end)
    return Host(
        loading=loader_ranges(trace),
        collecting=collecting,
        held=held,
        working=_union(columns, working),
        blocked=found,
        allocating=_union(columns, allocating[np.isin(thread[allocating], threads)]),
        recorded=len(columns.rows(RANGE_CATEGORIES | PYTHON_CATEGORIES)) > 0,
    )


def _until_replies(columns: Columns, operators: Ints) -> Intervals:
    """From the last operator before each reply of an asynchronous call to the reply, which the host then waited for."""
    rows = columns.rows(RANGE_CATEGORIES, _RPC_REPLY.match)
    ends = columns.ends(rows)
    ordered = operators[np.argsort(columns.ts_ns[operators], kind="stable")]
    over = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(columns.ends(ordered))))
    last = over[np.searchsorted(columns.ts_ns[ordered], ends)]
    return Intervals.union(np.clip(last, columns.ts_ns[rows], ends), ends)


def _launches(operations: Operations) -> Ints:
    launch = operations.launch[operations.work <= Work.COMMUNICATION]
    return np.asarray(launch[launch != UNLAUNCHED], dtype=np.int64)


def _waits(call: str) -> bool:
    return waits("cuda_runtime", call)


def _union(columns: Columns, rows: Ints) -> Intervals:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))
