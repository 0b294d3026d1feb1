"""Calls that hold the host until a device is ready: the one definition for account, critical path and replay.

Three kinds: calls that wait for a device by name (`cudaStreamSynchronize`), copies that return when the data is there
or staged (pageable memory), and any call that finds the launch queue full. What the host does in one of them is no work
of the host: how long it lasts follows from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.blocking import COPY_CALL, held_in_call
from dptune.measure.device.operations import Operations
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.queue import blocked_calls
from dptune.measure.intervals import NOTHING, Intervals, Ints, distinct
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, waits

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Blocked:
    """`time`: when any call holds the host. `waiting`: rows of the calls that wait for a device. `copying`: by row of a
    call that copies in it, the row of the copy that it returns with. `full`: rows of the calls that a full queue
    blocked, in the order in which they return. `of_streams`: whether each stream has a queue of its own.
    """

    time: Intervals
    waiting: Ints
    copying: dict[int, int]
    full: Ints
    of_streams: bool = True


NEVER = Blocked(NOTHING, _NONE, {}, _NONE)


def blocked(columns: Columns, devices: Sequence[Operations], threads: Ints) -> Blocked:
    """Of the calls of these threads (numbers of `Columns.thread`)."""
    calls = columns.rows(LAUNCH_CATEGORIES, lambda name: waits("cuda_runtime", name))
    copies = columns.rows(LAUNCH_CATEGORIES, lambda name: COPY_CALL.search(name) and "Async" not in name)
    if not devices:
        return NEVER
    rows, launch = (np.concatenate(each) for each in zip(*map(_launched, devices), strict=True))
    held = held_in_call(columns, rows, launch)
    unrecorded = copies[~np.isin(copies, launch)]  # of such a copy only the name of the call tells
    calls = np.concatenate((calls, unrecorded, launch[held]))
    calls = calls[np.isin(columns.thread[calls], threads)]
    found = blocked_calls(columns, devices)
    chosen = np.isin(columns.thread[found.rows], threads) & ~np.isin(found.rows, calls)
    full, since = found.rows[chosen], found.since_ns[chosen]
    return Blocked(
        Intervals.union(
            np.concatenate((columns.ts_ns[calls], since)), np.concatenate((columns.ends(calls), columns.ends(full)))
        ),
        distinct(calls),
        dict(zip(launch[held].tolist(), rows[held].tolist(), strict=True)),
        full[np.argsort(columns.ends(full), kind="stable")],
        found.of_streams,
    )


def _launched(operations: Operations) -> tuple[Ints, Ints]:
    """Operations whose launch was recorded, and the row of that."""
    known = operations.launch != UNLAUNCHED
    return operations.rows[known], operations.launch[known]
