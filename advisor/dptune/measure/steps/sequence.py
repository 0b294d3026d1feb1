"""What the host gave its devices to do, in order: the sequence in which steps repeat."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.operations import Operations
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES


@dataclass(frozen=True, eq=False)
class Sequence:
    """Device operations in the order of their launching; on a CPU the outermost operators of the busiest thread.

    `codes` index `names`; `begin_ns` and `end_ns` are those of the launching call, on a CPU of the operator. int64.
    `unlaunched` counts operations that are not in it, because their launch was not recorded.
    """

    codes: Ints
    names: tuple[str, ...]
    begin_ns: Ints
    end_ns: Ints
    unlaunched: int = 0
    on_cpu: bool = False

    def __len__(self) -> int:
        return len(self.codes)


def sequence(columns: Columns, devices: Listed[Operations]) -> Sequence:
    """The sequence of all devices of a trace."""
    rows = np.concatenate([device.rows for device in devices]) if devices else np.empty(0, dtype=np.int64)
    if any(operations.on_cpu for operations in devices):
        rows = rows[columns.of_category(OPERATOR_CATEGORIES, rows)]
        rows = _outermost(columns, rows)
        return _sequence(columns, rows, columns.ts_ns[rows], columns.ends(rows), 0, on_cpu=True)
    launch = np.concatenate([operations.launch for operations in devices]) if devices else rows
    known = launch != UNLAUNCHED
    rows, launch = rows[known], launch[known]
    order = np.lexsort((columns.ts_ns[rows], columns.ts_ns[launch]))
    rows, launch = rows[order], launch[order]
    return _sequence(columns, rows, columns.ts_ns[launch], columns.ends(launch), int((~known).sum()))


def _sequence(
    columns: Columns, rows: Ints, begin_ns: Ints, end_ns: Ints, unlaunched: int, on_cpu: bool = False
) -> Sequence:
    ids, codes = np.unique(columns.name_id[rows], return_inverse=True)
    names = tuple(columns.names[name] for name in ids.tolist())
    return Sequence(codes.astype(np.int64), names, begin_ns, end_ns, unlaunched, on_cpu)


def _outermost(columns: Columns, rows: Ints) -> Ints:
    """Of the thread with most operators those that lie in no other, in order of time."""
    if not len(rows):
        return rows
    thread = columns.thread[rows]
    numbers, often = np.unique(thread, return_counts=True)
    rows = rows[thread == numbers[often.argmax()]]
    rows = rows[np.lexsort((-columns.dur_ns[rows], columns.ts_ns[rows]))]
    ends = np.maximum.accumulate(columns.ends(rows))
    return np.asarray(rows[np.concatenate(([True], columns.ts_ns[rows][1:] >= ends[:-1]))])
