"""Which call of the host launched an operation of the device."""

from __future__ import annotations

import numpy as np

from dptune.measure.intervals import Intervals, Ints
from dptune.measure.once import once_for_each
from dptune.trace.columns import NONE, Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES

UNLAUNCHED = -1  # launched before recording began, or its launch was not recorded


def launch_rows(columns: Columns, rows: Ints) -> Ints:
    """For each device operation the row of the runtime or driver call with its correlation, the earliest of several.

    UNLAUNCHED where there is none. int64, as long as `rows`.
    """
    keys, calls = _calls(columns)
    if not len(calls):
        return np.full(len(rows), UNLAUNCHED, dtype=np.int64)
    wanted = columns.correlation[rows]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, calls[at], UNLAUNCHED).astype(np.int64)


@once_for_each
def _calls(columns: Columns) -> tuple[Ints, Ints]:
    """The correlations of the calls of the runtime, ascending, and the row of the earliest call of each."""
    calls = columns.rows(LAUNCH_CATEGORIES)
    calls = calls[columns.correlation[calls] != NONE]
    calls = calls[np.lexsort((columns.ts_ns[calls], columns.correlation[calls]))]
    keys = columns.correlation[calls]
    first = np.diff(keys, prepend=NONE) != 0
    return keys[first], calls[first]


def ending(gaps: Intervals, columns: Columns, rows: Ints, launch: Ints) -> tuple[Ints, Ints]:
    """For each gap the row of the operation that begins at its end, and of what launched it: of several the earliest.

    `rows` are operations and `launch` what launched each; UNLAUNCHED where there is none.
    """
    if not len(rows):
        none = np.full(len(gaps), UNLAUNCHED, dtype=np.int64)
        return none, none
    starts = columns.ts_ns[rows]
    first = np.isin(starts, gaps.end_ns)
    starts, launch, rows = starts[first], launch[first], rows[first]
    if not len(rows):
        return ending(gaps, columns, rows, launch)
    order = np.lexsort((np.where(launch == UNLAUNCHED, np.iinfo(np.int64).max, columns.ts_ns[launch]), starts))
    starts, launch, rows = starts[order], launch[order], rows[order]
    at = np.minimum(np.searchsorted(starts, gaps.end_ns), len(starts) - 1)
    begins = starts[at] == gaps.end_ns
    return np.where(begins, rows[at], UNLAUNCHED), np.where(begins, launch[at], UNLAUNCHED)
