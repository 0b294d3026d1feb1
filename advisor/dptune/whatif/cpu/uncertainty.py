"""What a prediction of steps that CPUs compute may be off by, beside what variants of the model say."""

from __future__ import annotations

from math import hypot, log2

from dptune.whatif.cpu import replay
from dptune.whatif.cpu.model import StepModel

# How much of what an unchanged replay is off a prediction is off by; what else it is off by of the difference that a
# change makes, of the step that it makes, and of what that computes, which varies more than what it communicates; and
# how much of the spread between processes, because the steps before and after a change are both measured. Of the third
# to the sixth round of predictions (74 changes, predicted again) 61 effects lay within, as wide as 9.6 % of the step in
# the median; of the 63 that change no more than the model does (no 16-bit hooks, which change what the C library does
# with freed memory, too) 55, as wide as 9.9 %. Ranks that share cores vary more: of nine changes of the seventh round
# on one host two lay just outside of what holds for others. Of the difference it was 2 % until the first run of the
# advice benchmark, whose changes save more of a step: 7 of 10 lay within. With 8 % 82 of 94 do (its ten; the sixth,
# seventh and ninth round but for 16-bit hooks), with 2 % 77. Where several processes were timed the model is of the
# middle one, and less sure of neither: of the 42 changes of the advice benchmark's last three draws, predicted again
# so, 39 lay within, as wide as 9 % of the step in the median.
_OF_REPLAY, _OF_STEP, _OF_PROCESSES = 0.3, 0.02, 0.3
_OF_COMPUTE, _OF_COMPUTE_OF_SEVERAL = 0.05, 0.045
# Steps of fully_shard differ more between processes, most where they compute for most of the step: of 19 changes that
# were predicted and then measured, the effects of 17 were off by up to 10.3 %, those over 1 Gbit/s by 10.3 and 15 %.
# Where several processes were timed, how far they differ is in the slack already; before, it counted twice: of the 8
# changes of the second round over 200 Mbit/s that keep fully_shard the effects were off by 2.1 % (root mean square) and
# 4.8 % at most, in intervals of 7 to 8 % to either side (tests/benchmarks/PREDICTIONS.md).
_OF_SHARDED_COMPUTE = 0.15
_OF_SHARDED_STEP, _OF_SHARDED_STEP_OF_SEVERAL = 0.07, 0.035
_OF_DIFFERENCE, _OF_DIFFERENCE_OF_SEVERAL = 0.08, 0.06
_OF_CROWDED_COMPUTE = 0.08
# How much more of what is computed for each doubling of the batch beyond the first: caches no longer hold what they
# held, or what is small had cost more than was seen. With 8 times the batch steps of five scripts on two cores took
# 16 % less to 27 % more than predicted; with twice and four times (the rounds of predictions) they lay within that.
# It was 12 % until the machine's own operators showed what does not grow: of the 17 such among the 42 16 lay within.
_OF_GROWTH = 0.08


def slack_ns(missed_ns: float, processes_ns: float) -> float:
    """What every prediction of a run may be off by, ns.

    `missed_ns`: what the replay of the unchanged model is off; `processes_ns`: how far other processes may be.
    """
    return hypot(_OF_REPLAY * missed_ns, _OF_PROCESSES * processes_ns)


def unknown_ns(
    before: StepModel,
    after: StepModel,
    step_ns: float,
    level: float,
    difference_ns: float,
    *,
    several: bool,
    crowded: bool,
) -> tuple[float, float, float]:
    """By cause what a prediction may be off by, ns: the step, its compute, and the difference that the change makes.

    `step_ns` is the measured step, `level` how many times as long it is as that of the model `before`, `difference_ns`
    what the change adds to it. `several`: whether several processes were timed; `crowded`: whether ranks share cores.
    A step of which more is communication is off by less.
    """
    predicted_ns = step_ns + difference_ns
    computed_ns = level * replay.step_ns(after.without_transfers())
    of_step, of_compute = _OF_STEP, _OF_COMPUTE_OF_SEVERAL if several else _OF_COMPUTE
    if crowded:
        of_compute = _OF_CROWDED_COMPUTE
    if before.sharding is not None or after.sharding is not None:
        of_compute, of_step = _OF_SHARDED_COMPUTE, _OF_SHARDED_STEP_OF_SEVERAL if several else _OF_SHARDED_STEP
    of_growth = _OF_GROWTH * max(0.0, log2(_grown(before, after)) - 1)
    of_difference = _OF_DIFFERENCE_OF_SEVERAL if several else _OF_DIFFERENCE
    return (
        of_step * predicted_ns,
        (of_compute + of_growth) * min(predicted_ns, computed_ns),
        of_difference * difference_ns,
    )


def _grown(before: StepModel, after: StepModel) -> float:
    """How many times the samples a step has; a batch, where that grows more: fewer micro-batches hide it in a step."""
    grown = after.samples / before.samples if after.samples and before.samples else 1.0
    loading, then = before.loading, after.loading
    if loading is None or then is None or not loading.batch or not then.batch:
        return grown
    return max(grown, then.batch / loading.batch)
