"""What a prediction of GPU steps may be off by, beside what variants of the model say.

A change is applied to every recorded step and compared with that same step, so how much steps differ from each other is
no error of the model: it counts only as far as the recorded steps differ in what the change saves. A change that leaves
the program as it is changes exactly nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import stdev

from dptune.whatif.gpu.program import Program

# The unchanged step is measured, so what a replay cannot know grows with what a change moves: contention of kernels,
# work that waits behind what is taken away. As shares of the step, and of the difference, or of what is left of the
# step where that is less. Of 15 changes measured on two ranks of an H200 12 lie within; so does the one measured pair
# of public traces, which is 1.4 % off. Simulated changes (tests/simulator) lie within more often than nine times in
# ten: nothing else differs from the run before the change.
_OF_STEP, OF_DIFFERENCE = 0.015, 0.15
_NORMAL_90 = 1.645  # two-sided
_ROUNDING_NS = 1.0
_UNEVEN = 0.05  # of the step: halves of the steps nearer to their mean are covered by the other causes


def unchanged(before: Program, after: Program) -> bool:
    """Whether a change leaves the program as it is."""
    return after.edges is before.edges and after.steps is before.steps


def unknown_ns(
    before: Program, after: Program, step_ns: float, error_share: float, *, only_a_bound: bool, of_batch: bool = False
) -> tuple[float, ...]:
    """By cause what a prediction may be off by, ns.

    `step_ns` is the measured step, which the replay of the unchanged program misses by `error_share`: what it says of a
    change may be off by as much of that. A bound assumes nothing of how much a change saves. `of_batch`: whether the
    change is of the batch, which is judged by the time per sample, and so by the whole step: uneven steps count.
    """
    if unchanged(before, after):
        return ()
    unchanged_ns = before.step_ns()
    level = step_ns / unchanged_ns
    difference_ns = level * (after.step_ns() - unchanged_ns)
    of_replay = error_share * difference_ns, level * standard_error_ns(before, after, only_a_bound=only_a_bound)
    if only_a_bound:
        return of_replay
    of_steps = level * remaining_variation_ns(after) if of_batch else 0.0
    left_ns = step_ns + difference_ns
    return *of_replay, of_steps, _OF_STEP * left_ns, OF_DIFFERENCE * min(abs(difference_ns), left_ns)


def remaining_variation_ns(after: Program) -> float:
    """How far the mean of every second step with the change is from the mean of all, where that is much."""
    first, second = after.halves_ns()
    apart = abs(first - second) / 2
    return apart if apart > _UNEVEN * after.step_ns() else 0.0


def standard_error_ns(before: Program, after: Program, *, only_a_bound: bool = False) -> float:
    """90 % of what the mean difference may be off by, because steps differ in what the change saves.

    A bound is of the steps that the change leaves: it is off by no more than those differ from each other.
    """
    durations, changed_durations = before.by_number(before.run()), after.by_number(after.run())
    differences = [changed_durations[number] - duration for number, duration in durations.items()]
    if len(differences) < 2:
        return 0.0
    spread = min(stdev(differences), stdev(changed_durations.values())) if only_a_bound else stdev(differences)
    return _NORMAL_90 * spread / sqrt(len(differences))


def one_way(way: int, low_ns: float, high_ns: float, step_ns: float) -> tuple[float, float]:
    """The ends of an interval without what a change that only lengthens (1) or only shortens (-1) the step cannot do.

    `step_ns` is the measured step, which any model may be off by a little.
    """
    if way > 0:
        low_ns = max(low_ns, min(high_ns, (1 - _OF_STEP) * step_ns))
    elif way < 0:
        high_ns = min(high_ns, max(low_ns, (1 + _OF_STEP) * step_ns))
    return low_ns, high_ns


def interval(
    estimate_ns: float, below_ns: float, above_ns: float, floors_ns: Sequence[float], least_ns: float
) -> tuple[float, float, float]:
    """The low end, the prediction and the high end, ns, of an estimate that may be below what no step is shorter than.

    The estimate may be off by `below_ns` and `above_ns`. `floors_ns`: the compute of the step with the change, then the
    same at both ends of what is assumed about the change. `least_ns`: the step without what the change makes faster.
    The interval of a raised prediction reaches as high as that of the estimate, and at least what any model may be off
    by above the floors.
    """
    step_ns = max(floors_ns[0], least_ns, estimate_ns)
    low_ns = max(min(floors_ns), least_ns, estimate_ns - below_ns)
    most_ns = max(step_ns, *floors_ns)
    if step_ns > estimate_ns + _ROUNDING_NS:
        most_ns *= 1 + _OF_STEP
    return low_ns, step_ns, max(estimate_ns + above_ns, most_ns)
