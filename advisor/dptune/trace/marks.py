"""The steps as the host marked them, one range for each number; and whether a trace shows compute at all."""

from __future__ import annotations

import re

import numpy as np

from dptune.trace.collective_kernels import library_of
from dptune.trace.columns import Columns, Ints
from dptune.trace.kernels import (
    COLLECTIVE_PREFIXES,
    COMMUNICATING_CATEGORIES,
    OPERATOR_CATEGORIES,
    RANGE_CATEGORIES,
    STEP_NAME,
)

_NO_COMPUTE = re.compile(r"aten::(empty|zeros|set_|record_stream|detach|view|to|copy_)\b")


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


def shows_compute(columns: Columns) -> bool:
    """Whether operators or kernels compute: a trace of collectives alone shows neither training nor inference."""
    kernels = columns.rows(COMMUNICATING_CATEGORIES, lambda name: library_of(name) is None)
    return len(kernels) > 0 or len(columns.rows(OPERATOR_CATEGORIES, _computes)) > 0


def _computes(name: str) -> bool:
    return not name.startswith(COLLECTIVE_PREFIXES) and not STEP_NAME.match(name) and not _NO_COMPUTE.match(name)
