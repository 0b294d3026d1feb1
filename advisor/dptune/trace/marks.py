"""The steps as the host marked them: one range for each number."""

from __future__ import annotations

import numpy as np

from dptune.trace.columns import Columns, Ints
from dptune.trace.kernels import RANGE_CATEGORIES, STEP_NAME


def step_rows(columns: Columns) -> tuple[Ints, int]:
    """The rows of ProfilerStep ranges in order of time, without those of no length, and how many were dropped.

    Dropped is a range that another lies inside (a step written as annotation and as operator, or one around several),
    and a later one of a number that was marked before.
    """
    rows = _marks(columns)
    if not len(rows):
        return rows, 0
    rows = rows[np.lexsort((-columns.ends(rows), columns.ts_ns[rows]))]
    ends = columns.ends(rows)
    earliest_later = np.minimum.accumulate(ends[::-1])[::-1][1:]
    innermost = rows[np.append(ends[:-1] < earliest_later, True)]
    _, first = np.unique(columns.name_id[innermost], return_index=True)
    kept = innermost[np.sort(first)]
    return kept, len(rows) - len(kept)


def marked_steps(columns: Columns) -> int:
    """How many steps have a ProfilerStep range, by their numbers."""
    return len(np.unique(columns.name_id[_marks(columns)]))


def _marks(columns: Columns) -> Ints:
    rows = columns.rows(RANGE_CATEGORIES, STEP_NAME.match)
    return rows[columns.dur_ns[rows] > 0]
