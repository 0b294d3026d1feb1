"""What the threads of the script did: loading, collecting garbage, held by a blocking call, or preparing work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dptune.measure.device.operations import COLLECTIVE_CALL, ENCLOSING, Operations, loader_ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.runfile.facts import Window
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


@dataclass(frozen=True, eq=False)
class Host:
    """Sets of time in which the script's threads did each. `held`: inside a call that waits for a device or a peer."""

    loading: Intervals
    collecting: Intervals
    held: Intervals
    working: Intervals


def host(trace: Trace, devices: list[Operations], recorded: Window | None = None) -> Host:
    """The script's threads are those that mark its steps, and those that launch kernels.

    `recorded` is what the recording says of the window that the trace is of: full collections of garbage among it.
    """
    columns = trace.columns
    marks = columns.of_category(RANGE_CATEGORIES) & columns.named(STEP_NAME.match)
    thread = columns.thread
    threads = np.unique(np.concatenate([thread[marks], *(thread[_launches(own)] for own in devices if not own.on_cpu)]))
    script = np.isin(thread, threads)
    on_cpu = any(own.on_cpu for own in devices)
    operator = columns.of_category(OPERATOR_CATEGORIES)
    held = operator & columns.named(COLLECTIVE_CALL.match) if on_cpu else script & _waiting(columns)
    calls = columns.of_category(LAUNCH_CATEGORIES)
    working = script & (calls | (operator & ~columns.named(ENCLOSING.match))) & ~held
    collecting = _union(columns, columns.named(COLLECTION_NAME.match))
    if recorded is not None and recorded.collections_ns:
        start, end = np.array(recorded.collections_ns, dtype=np.int64).T - trace.base_ns
        collecting |= Intervals.union(start, end)
    return Host(
        loading=loader_ranges(trace),
        collecting=collecting,
        held=_union(columns, held),
        working=_union(columns, working),
    )


def _launches(own: Operations) -> Ints:
    launch = own.launch[own.work <= Work.COMMUNICATION]
    return np.asarray(launch[launch != UNLAUNCHED], dtype=np.int64)


def _waiting(columns: Columns) -> Mask:
    calls = columns.of_category(LAUNCH_CATEGORIES)
    return np.asarray(calls & columns.named(lambda name: waits("cuda_runtime", name)), dtype=np.bool_)


def _union(columns: Columns, rows: Mask) -> Intervals:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))
