"""Steps where nothing marks them: from what repeats in the sequence of operations.

What repeats is a training step only if each repetition holds a backward pass; layers, requests and tokens of a model
that only runs forward repeat just as well. A step ends after its optimizer's kernels where they are recognized by their
names, else before the operation, of those that come in every step, that the host takes longest to come to. Where the
optimizer's kernels come less often than what repeats, that is a micro-batch, and the optimizer decides.

At the beginning and the end of a recording a step may be cut off. On a GPU it counts if it holds what the others hold,
since its window there begins with its first operation; on a CPU the pause before it would be lost, and it does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dptune.measure.intervals import Ints, Mask
from dptune.measure.steps.period import LEAST, LEAST_ALIKE, alike, period, segments, similarity
from dptune.measure.steps.sequence import Sequence
from dptune.trace.columns import Columns
from dptune.trace.kernels import (
    BACKWARD_KERNEL_NAME,
    BACKWARD_NAME,
    OPERATOR_CATEGORIES,
    OPTIMIZER_KERNEL_NAME,
    RANGE_CATEGORIES,
)
from dptune.trace.marks import shows_compute

NO_LAUNCHES = "the calls that launched most operations were not recorded, so no repetition can be found"
NO_BACKWARD = "no backward pass (this looks like inference)"
NO_COMPUTE = "no operator or kernel that computes"
NO_OPERATORS = "the host's operators, which would show a backward pass, were not recorded"
NO_BACKWARD_EACH = "some repetitions contain no backward pass: they may be layers, or few steps"
NO_PERIOD = f"no sequence of operations repeats {LEAST} times"
NO_WHOLE = f"fewer than {LEAST} whole steps repeat"
_PLACES = 4  # of one name in a step that a step may begin at


@dataclass(frozen=True, eq=False)
class Repetition:
    """Boundaries of steps that follow one another, int64 ns, and how alike the steps are, 0 to 1."""

    boundaries_ns: Ints
    similarity: float


def repetition(columns: Columns, sequence: Sequence) -> Repetition | str:
    """The steps of a sequence, or why there are none."""
    if sequence.unlaunched > len(sequence):
        return NO_LAUNCHES
    optimizer = _called(sequence, OPTIMIZER_KERNEL_NAME)
    backward = _backward(columns, sequence, optimizer)
    if not len(backward):
        if not shows_compute(columns):
            return NO_COMPUTE
        return NO_BACKWARD if len(columns.rows(OPERATOR_CATEGORIES)) else NO_OPERATORS
    places = period(sequence.codes)
    if places is None:
        return NO_PERIOD
    cuts = _after_optimizer(sequence, optimizer, places) if optimizer.any() else _after_pause(sequence, places)
    if len(cuts) < 2:
        return NO_WHOLE
    likeness = similarity(sequence.codes, cuts)
    if likeness < LEAST_ALIKE:
        return NO_PERIOD
    if not sequence.on_cpu:
        cuts = _with_ends(sequence.codes, cuts)
    if len(cuts) <= LEAST:
        return NO_WHOLE
    boundaries = _times(sequence, cuts)
    held = np.diff(np.searchsorted(backward, boundaries)) > 0
    return Repetition(boundaries, likeness) if held.all() else NO_BACKWARD_EACH


def _called(sequence: Sequence, name: re.Pattern[str]) -> Mask:
    wanted = np.array([name.search(operation_name) is not None for operation_name in sequence.names], dtype=np.bool_)
    return np.asarray(wanted[sequence.codes], dtype=np.bool_)


def _backward(columns: Columns, sequence: Sequence, optimizer: Mask) -> Ints:
    """When the host ran a backward pass, int64 ns in order; by kernels where it shows none, and an optimizer's."""
    rows = columns.rows(RANGE_CATEGORIES, BACKWARD_NAME.search)
    if len(rows):
        return np.sort(columns.ts_ns[rows])
    if not optimizer.any():
        return np.empty(0, dtype=np.int64)
    return sequence.begin_ns[_called(sequence, BACKWARD_KERNEL_NAME)]


def _after_optimizer(sequence: Sequence, optimizer: Mask, places: Ints) -> Ints:
    """The places after the runs of the optimizer's kernels, of which at most a quarter of a period lies apart.

    Such kernels also clip gradients and set them to zero: of several runs in a step the one of most kernels counts.
    """
    of_optimizer = np.flatnonzero(optimizer)
    apart = np.diff(of_optimizer) > np.median(np.diff(places)) / 4
    last = of_optimizer[np.append(apart, True)]
    sizes = np.diff(np.concatenate(([-1], np.flatnonzero(np.append(apart, True)))))
    cuts = np.searchsorted(sequence.begin_ns, sequence.begin_ns[last[2 * sizes >= sizes.max()]], side="right")
    return np.unique(cuts)


def _after_pause(sequence: Sequence, places: Ints) -> Ints:
    """The places, one in each period, after the longest pause of the host (the median over periods).

    A place is the first, second, ... time that a name comes in each period, of names that come as often in all: the
    first of two copies to the device, say, that come after the loader.
    """
    counts = segments(sequence.codes, places)
    pause = np.maximum(sequence.begin_ns[1:] - np.maximum.accumulate(sequence.end_ns)[:-1], 0)
    pause = np.concatenate(([0], pause))
    often = counts[0] * (counts == counts[0]).all(axis=0)
    longest, found = -1.0, places
    for name in np.flatnonzero((often > 0) & (often <= _PLACES)).tolist():
        name_places = np.flatnonzero(sequence.codes == name)
        many = int(often[name])
        first = int(np.searchsorted(name_places, places[0]))
        for turn in range(many):
            begins = name_places[(first + turn) % many :: many]
            waited = float(np.median(pause[begins]))
            if waited > longest:
                longest, found = waited, begins
    return np.unique(np.searchsorted(sequence.begin_ns, sequence.begin_ns[found], side="left"))


def _with_ends(codes: Ints, cuts: Ints) -> Ints:
    """The cuts, with the beginning and the end of the sequence where those pieces are whole steps.

    A piece is whole if it is as much like the typical step as the least alike of the others, and no less than most.
    """
    counts = segments(codes, cuts)
    typical = np.median(counts, axis=0)
    least = max(float(alike(counts, typical).min()), LEAST_ALIKE)

    def whole(piece: Ints) -> bool:
        held = np.bincount(piece, minlength=counts.shape[1])
        return float(alike(held, typical)) >= least

    head = [0] if whole(codes[: cuts[0]]) else []
    tail = [len(codes)] if whole(codes[cuts[-1] :]) else []
    return np.concatenate((np.array(head, dtype=np.int64), cuts, np.array(tail, dtype=np.int64)))


def _times(sequence: Sequence, cuts: Ints) -> Ints:
    """When each step begins: as soon as the call before is over, so that the pause before a step belongs to it."""
    begin, over = sequence.begin_ns, np.maximum.accumulate(sequence.end_ns)
    times = []
    for cut in cuts.tolist():
        if cut == 0:
            times.append(int(begin[0]))
        elif cut == len(begin):
            times.append(max(int(over[-1]), int(begin[-1]) + 1))
        else:
            times.append(min(max(int(over[cut - 1]), int(begin[cut - 1]) + 1), int(begin[cut])))
    return np.array(times, dtype=np.int64)
