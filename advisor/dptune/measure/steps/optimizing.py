"""Steps from the optimizer's own ranges: from the end of one call of its step() to the end of the next.

The clock is the optimizer that steps first, by its name, as when dptune records. Two optimizers of one class have one
name: where the steps are more alike when every second, third or fourth end is taken, those are the steps. Optimizers
that step inside the backward pass, parameter by parameter, mark no steps; those that run the pass in a closure do.
"""

from __future__ import annotations

import numpy as np

from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.period import similarity
from dptune.measure.steps.sequence import Sequence
from dptune.trace.columns import Columns
from dptune.trace.kernels import BACKWARD_NAME, OPTIMIZER_STEP_NAME, RANGE_CATEGORIES

_MOST_OPTIMIZERS = 4  # of one name in a step
_CLEARLY = 0.1  # more alike


def optimizer_ends(columns: Columns) -> Ints:
    """Ends of the clock's outermost step() ranges, int64 ns in order of time; none if one begins in the backward."""
    rows = columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match)
    if not len(rows):
        return np.empty(0, dtype=np.int64)
    rows = rows[np.lexsort((-columns.dur_ns[rows], columns.ts_ns[rows]))]
    ends = columns.ends(rows)
    outermost = np.concatenate(([True], ends[1:] > np.maximum.accumulate(ends)[:-1]))
    clock = rows[outermost & (columns.name_id[rows] == columns.name_id[rows[0]])]
    thread = columns.thread
    backward = columns.rows(RANGE_CATEGORIES, BACKWARD_NAME.search)
    backward = backward[thread[backward] == thread[clock[0]]]
    inside = Intervals.union(columns.ts_ns[backward], columns.ends(backward))
    starts = columns.ts_ns[clock]
    if (inside.lengths(starts, starts + 1) > 0).any():
        return np.empty(0, dtype=np.int64)
    return np.asarray(columns.ends(clock), dtype=np.int64)


def optimizer_steps(columns: Columns, sequence: Sequence) -> tuple[Ints, float]:
    """The boundaries of steps, int64 ns, and how alike the steps are (0 to 1); fewer than two where there is none."""
    ends = optimizer_ends(columns)
    if len(ends) < 2:
        return ends, 0.0
    best, found = -1.0, ends
    for every in range(1, _MOST_OPTIMIZERS + 1):
        taken = ends[::every]
        if len(taken) < 3 and every > 1:
            break
        likeness = similarity(sequence.codes, np.searchsorted(sequence.begin_ns, taken))
        if likeness > best + _CLEARLY:
            best, found = likeness, taken
    return found, best
