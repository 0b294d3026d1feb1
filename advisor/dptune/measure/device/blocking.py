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

from dptune.measure.host.enclosing import Ranges, holding
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPERATOR_CATEGORIES, RANGE_CATEGORIES, waits

_COPY = re.compile(r"^(cuda|hip|cu)Memcpy")
_ASYNCHRONOUS = re.compile(r"Async")


@dataclass(frozen=True, eq=False)
class Blocking:
    """By copy whether it `held` the thread, and the time of all that did."""

    held: Mask
    time: Intervals


def blocking(columns: Columns, rows: Ints, launch: Ints, on_device: bool, pinned: bool | None) -> Blocking:
    """Of copies of one direction: `on_device` where no host memory takes part, `pinned` None where it is not known.

    `launch` is the row of the call that launched each.
    """
    begin, end = columns.ts_ns[rows], columns.ends(rows)
    called = columns.ends(launch)
    a_copy = columns.named(_COPY.search, launch)
    asynchronous = columns.named(_ASYNCHRONOUS.search, launch)
    if on_device:
        in_call = a_copy & ~asynchronous & (called >= end)
    else:
        staged = called > begin + (end - begin) // 2
        in_call = a_copy & (~asynchronous | (staged & (pinned is not True)))
    after = _next(columns, launch)
    waited = a_copy & (after != UNLAUNCHED) & _waits(columns, after) & _together(columns, launch, after)
    waited &= not on_device
    held = in_call | waited
    calls, then = launch[in_call], after[waited]
    time = Intervals.union(
        np.concatenate((columns.ts_ns[calls], columns.ts_ns[then])),
        np.concatenate((columns.ends(calls), columns.ends(then))),
    )
    return Blocking(held, time)


def _waits(columns: Columns, rows: Ints) -> Mask:
    waiting = columns.named(lambda name: waits("cuda_runtime", name) and not _COPY.search(name), rows)
    return np.asarray(columns.of_category(LAUNCH_CATEGORIES, rows) & waiting, dtype=np.bool_)


def _together(columns: Columns, one: Ints, other: Ints) -> Mask:
    """Which pairs of calls the same operator makes, or none: a wait outside it is the script's, for all that runs."""
    calls = columns.ts_ns[np.concatenate((one, other))]
    operators = holding(columns, columns.rows(OPERATOR_CATEGORIES), calls)
    ranges, thread = Ranges.of_rows(columns, operators), columns.thread
    first, second = (ranges.at(thread[rows], columns.ts_ns[rows]) for rows in (one, other))
    return np.asarray(first == second, dtype=np.bool_)


def _next(columns: Columns, launch: Ints) -> Ints:
    """For each call the row of what its thread begins next, operator, range or call; UNLAUNCHED where nothing."""
    told, thread = columns.rows(RANGE_CATEGORIES | LAUNCH_CATEGORIES), columns.thread
    after = np.full(len(launch), UNLAUNCHED, dtype=np.int64)
    for number in np.unique(thread[launch]).tolist():
        own, asking = told[thread[told] == number], thread[launch] == number
        order = own[np.argsort(columns.ts_ns[own], kind="stable")]
        place = np.full(len(columns), len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        after[asking] = np.append(order, [UNLAUNCHED, UNLAUNCHED])[place[launch[asking]] + 1]
    return after
