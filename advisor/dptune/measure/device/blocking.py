"""Which copies hold the thread that asks for them, and for how long.

Source: CUDA Runtime API, "API synchronization behavior". The synchronous forms return when the data is copied, or
staged from pageable memory; between two places of one device they do not wait. The asynchronous forms "might be
synchronous" with pageable memory, which then shows in when they return; with page-locked memory they do not wait. torch
waits for a copy that is not `non_blocking` with a call of its own right after it, in the same operator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.copy_kinds import ON_DEVICES, copy_kind
from dptune.measure.host.enclosing import Ranges, holding
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPERATOR_CATEGORIES, RANGE_CATEGORIES, waits

COPY_CALL = re.compile(r"^(cuda|hip|cu)Memcpy")
_ASYNCHRONOUS = re.compile(r"Async")


@dataclass(frozen=True, eq=False)
class Blocking:
    """By copy whether it `held` the thread, and the time of all that did."""

    held: Mask
    time: Intervals


def blocking(columns: Columns, rows: Ints, launch: Ints) -> Blocking:
    """Of copies on a device; `launch` is the row of the call that launched each."""
    in_call = held_in_call(columns, rows, launch)
    after = _next(columns, launch)
    waited = columns.named(COPY_CALL.search, launch) & (after != UNLAUNCHED)
    waited &= _waits(columns, after) & _together(columns, launch, after) & ~_on_devices(columns, rows)
    calls, then = launch[in_call], after[waited]
    time = Intervals.union(
        np.concatenate((columns.ts_ns[calls], columns.ts_ns[then])),
        np.concatenate((columns.ends(calls), columns.ends(then))),
    )
    return Blocking(in_call | waited, time)


def held_in_call(columns: Columns, rows: Ints, launch: Ints) -> Mask:
    """Which of the copies hold the thread inside the call that asks for them."""
    begin, end, called = columns.ts_ns[rows], columns.ends(rows), columns.ends(launch)
    on_devices = _on_devices(columns, rows)
    asynchronous = columns.named(_ASYNCHRONOUS.search, launch)
    may_be_pageable = columns.named(lambda name: copy_kind(name)[1] is not True, rows)
    staged = (called > begin + (end - begin) // 2) & may_be_pageable
    held = np.where(on_devices, ~asynchronous & (called >= end), ~asynchronous | staged)
    return np.asarray(held & columns.named(COPY_CALL.search, launch), dtype=np.bool_)


def _on_devices(columns: Columns, rows: Ints) -> Mask:
    return columns.named(lambda name: copy_kind(name)[0] in ON_DEVICES, rows)


def _waits(columns: Columns, rows: Ints) -> Mask:
    waiting = columns.named(lambda name: waits("cuda_runtime", name), rows)
    return np.asarray(columns.of_category(LAUNCH_CATEGORIES, rows) & waiting, dtype=np.bool_)


def _together(columns: Columns, launch: Ints, other: Ints) -> Mask:
    """Which pairs of calls the same operator makes, or none: a wait outside it is the script's, for all that runs."""
    calls = columns.ts_ns[np.concatenate((launch, other))]
    operators = holding(columns, columns.rows(OPERATOR_CATEGORIES), calls)
    ranges, thread = Ranges.of_rows(columns, operators), columns.thread
    first, second = (ranges.at(thread[rows], columns.ts_ns[rows]) for rows in (launch, other))
    return np.asarray(first == second, dtype=np.bool_)


def _next(columns: Columns, launch: Ints) -> Ints:
    """For each call the row of what its thread begins next, operator, range or call; UNLAUNCHED where nothing."""
    rows, thread = columns.rows(RANGE_CATEGORIES | LAUNCH_CATEGORIES), columns.thread
    after = np.full(len(launch), UNLAUNCHED, dtype=np.int64)
    for number in np.unique(thread[launch]).tolist():
        thread_rows, asking = rows[thread[rows] == number], thread[launch] == number
        order = thread_rows[np.argsort(columns.ts_ns[thread_rows], kind="stable")]
        place = np.full(len(columns), len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        after[asking] = np.append(order, [UNLAUNCHED, UNLAUNCHED])[place[launch[asking]] + 1]
    return after
