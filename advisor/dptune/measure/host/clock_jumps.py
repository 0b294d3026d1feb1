"""Whether the clock of a rank jumps back within its trace.

Torch numbers operators (`External id`) and the runtime numbers calls (`correlation`) as they are made, and Kineto
writes those of one thread in that order. In none of 100 public traces does an event that comes later on its thread by
both orders start before an earlier one, nor does a step start before the one before it has ended. Where that happens,
the clock was set back, or parts of several recordings were joined, and no length of a step is known.

Marked steps are no steps either where most marks contain others, as where all start at one time, and where they are
shorter than SHORTEST_NS.

Traces that were written by hand are in less order: events added at the end have numbers far from their neighbours', and
calls of a step that are out of order are so in each step. Neither is a jump.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import numpy as np

from dptune.measure.intervals import Ints
from dptune.measure.steps.windows import host_steps
from dptune.measured import Loss, digits, in_ms
from dptune.trace.columns import NONE, Columns
from dptune.trace.events import Trace
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPERATOR_CATEGORIES
from dptune.trace.marks import marked_steps

SLACK_NS = 1_000_000  # the largest step back of a call that is no jump; public traces have none at all
_OVERLAP_NS = 10_000  # the same for marked steps
SHORTEST_NS = 2_000  # a step: launching one kernel takes the host longer than that
NEAR = 64  # numbers: other threads take some of those between neighbours on one thread
MOST_JUMPS = 3  # of a clock, seen on one thread, where they are shorter than a step or no step is marked


def clock_jump(trace: Trace) -> Loss | None:
    """What is wrong with a rank's clock or marked steps: a jump back, overlaps, impossible lengths; None otherwise."""
    steps = sorted(host_steps(trace), key=lambda step: step.number)
    step_ns = max((step.length_ns for step in steps), default=sys.maxsize)
    back_ns = max((before.start_ns - after.start_ns for before, after in pairwise(steps)), default=0)
    back_ns = max(back_ns, *_of_calls(trace.columns, step_ns))
    if back_ns > 0:
        text = f"timestamps jump back by {in_ms(back_ns)} ms within the trace, so no step can be timed"
        return Loss(code="clock-backwards", fatal=True, text=text)
    overlap_ns = max((before.end_ns - after.start_ns for before, after in pairwise(steps)), default=0)
    if overlap_ns > _OVERLAP_NS:
        text = f"the marked steps overlap by up to {in_ms(overlap_ns)} ms, so no step can be timed"
        return Loss(code="steps-overlap", fatal=True, text=text)
    marked = marked_steps(trace.columns)
    if marked > 2 * len(steps):
        text = f"{marked - len(steps):,} of {marked:,} marked steps contain other steps, so no step can be timed"
        return Loss(code="steps-overlap", fatal=True, text=text)
    if steps and median(step.length_ns for step in steps) < SHORTEST_NS:
        shortest = digits(median(step.length_ns for step in steps) / 1000)
        text = f"the marked steps take {shortest} us, too short for a training step, so no step can be timed"
        return Loss(code="steps-too-short", fatal=True, text=text)
    return None


def _of_calls(columns: Columns, step_ns: int) -> Iterator[int]:
    """How far a call goes back behind the one before it on its thread, by their numbers and in the file."""
    for categories, numbers in (
        (LAUNCH_CATEGORIES, columns.correlation),
        (OPERATOR_CATEGORIES, columns.external_id),
    ):
        rows = columns.rows(categories)
        rows = rows[numbers[rows] != NONE]
        thread = columns.thread[rows]
        yield _backward(columns, rows[np.argsort(thread, kind="stable")], numbers, step_ns)
        yield _backward(columns, rows[np.lexsort((numbers[rows], thread))], numbers, step_ns)


def _backward(columns: Columns, rows: Ints, numbers: Ints, step_ns: int) -> int:
    """The largest jump back between neighbours of one thread, which follow each other in both orders."""
    before, after = rows[:-1], rows[1:]
    gap = numbers[after] - numbers[before]
    follows = (columns.thread[before] == columns.thread[after]) & (gap > 0) & (gap <= NEAR) & (before < after)
    back_ns = np.where(follows, columns.ts_ns[before] - columns.ts_ns[after], 0)
    (jumps,) = np.nonzero(back_ns > SLACK_NS)
    if not len(jumps):
        return 0
    _, thread, count = np.unique(columns.thread[after[jumps]], return_inverse=True, return_counts=True)
    jumps = jumps[(count[thread] <= MOST_JUMPS) | (back_ns[jumps] > step_ns)]
    return int(back_ns[jumps].max(initial=0))
