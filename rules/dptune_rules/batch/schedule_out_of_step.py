"""A learning-rate schedule advances faster or slower than its training, or differs between ranks.

## What it measures

How many steps a scheduler makes per optimizer step, against the length that it is built with (`total_steps`, `T_max`,
`total_iters`, `num_training_steps`, or the largest whole number that the function of a `LambdaLR` is bound to):

- Lightning steps it once per epoch, but it is at least as long as all optimizer steps of the training.
- It advances once per process in each optimizer step, as one prepared by Accelerate does, but its length is a whole
  number of epochs of one process and not of all processes. Round lengths (multiples of 50) are not judged.
- It advances in each optimizer step, as often as there are batches, but ends early in the first epoch, as if its
  length counted epochs: `CosineAnnealingLR` after `T_max`; `MultiStepLR`, `LinearLR` and `PolynomialLR` after
  their last step, where that lowers the rate to a tenth or less; `StepLR` and `ExponentialLR` where the rate is 1 % of
  its first value. If it ends after the recorded steps, it is reported only if the script plans at least as many epochs
  as the schedule has steps: a pre-training within one epoch may end with its schedule.
  Schedules that are meant to advance with the batches are not judged (`OneCycleLR`, `CyclicLR`, `LambdaLR`,
  `CosineAnnealingWarmRestarts`, warm-up).

With DistributedDataParallel or FSDP on all ranks, also the values that `ReduceLROnPlateau.step` is given. Reported if
they differ between ranks in two calls or more, by more than 0.01 %.

## Why it matters

It hurts convergence. A schedule that steps once per epoch stays in its warm-up: a one-cycle schedule never reaches its
maximum rate. One that advances once per process ends early: with two processes the rate is zero in the second half of
the training, and those steps train nothing. One that counts epochs but advances with each batch is over in the first
epoch: the rate stays at its end, or, with `CosineAnnealingLR`, falls and rises again every `2 * T_max` batches.

`ReduceLROnPlateau` lowers the rate when its value has not improved. If each rank gives it the loss of its own part of
the validation data, ranks lower the rate at different times. They then apply the same gradients at different rates, so
their weights differ, and DDP does not correct that.

## What to change

In Lightning, return the scheduler with the interval in which it counts:

    return [optimizer], [{"scheduler": schedule, "interval": "step"}]

In a loop of your own, step a schedule of epochs after the loop over the batches, or give it its length in steps:

    schedule = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))

With Accelerate, count the steps of all processes, because `schedule.step()` makes `num_processes` steps:

    total = epochs * len(loader) * accelerator.num_processes

or pass `step_scheduler_with_optimizer=False` to `Accelerator`; then step it only where the optimizer steps.

Average the value over all ranks before the schedule gets it:

    dist.all_reduce(loss)
    schedule.step(loss.item() / dist.get_world_size())

In Lightning, log it with `sync_dist=True`; with Accelerate, use `accelerator.reduce(loss, "mean")`.

## When to leave it alone

- The schedule ends early on purpose, or the training does: a short trial may have fewer steps than an epoch.

## References

- Lightning, "Learning rate scheduling", on `interval`:
  https://lightning.ai/docs/pytorch/stable/common/optimization.html
- Accelerate, "Comparing performance across distributed setups", on learning rates: "a learning rate scheduler will be
  stepped `num_processes` times": https://huggingface.co/docs/accelerate/concept_guides/performance
- PyTorch, "How to adjust learning rate", where schedulers step after the loop over the batches:
  https://pytorch.org/docs/stable/optim.html
- A tenth of the rate: step schedules divide by 10 at each step (He et al., "Deep Residual Learning", 2015, section
  4.2: https://arxiv.org/abs/1512.03385), and cosine schedules of language models end at 10 % (Hoffmann et al.,
  "Training Compute-Optimal Large Language Models", 2022, section 3.1: https://arxiv.org/abs/2203.15556). A schedule
  that ends above a tenth is part of a longer one, for example its warm-up.
- A recording that goes past the end shows that the training does. An epoch then need only be twice as long as the
  schedule, for an end in mid-epoch to differ from one in whole epochs. Where the end lies after the recorded steps, the
  epoch must be ten times as long: a trial may end early. How many epochs the script plans is read from the loop around
  the one that draws batches (`for epoch in range(90)`), or from Lightning's trainer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Confidence, Evidence
from dptune.rule import PlateauFacts, Rule, RunView, SchedulerFacts, Threshold, epochs_of
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known, passed_at

TIMES_PASSED = Threshold(
    "times_passed", 2.0, "an epoch, as a multiple of the schedule, where recorded steps lie after its end"
)
TIMES_AHEAD = Threshold(
    "times_ahead", 10.0, "the same where its end lies ahead: a training of a tenth of an epoch is a trial"
)
APART = Threshold(
    "apart", 1e-4, "relative: what torch takes for an improvement by default; averages over all ranks agree to rounding"
)

RULE = Rule(
    code="DP303",
    name="schedule-out-of-step",
    family="batch",
    kind="risk",
    summary="a learning-rate schedule advances faster or slower than its training, or differs between ranks",
    since="0.1",
    thresholds=(TIMES_PASSED, TIMES_AHEAD, APART),
    asked_when_busy=True,
    needs="recording",
)

LEAST_STEPS_PER_EPOCH = 10  # below, a length in steps and one in epochs cannot be distinguished
_LENGTHS = ("T_max", "total_steps", "total_iters", "step_size", "milestones", "lr_lambda", "gamma")  # arguments
ROUND = 50  # multiples of it may have been chosen by hand
LEAST_CALLS = 2  # that differ: one may be a sanity check before training


def check(run: RunView) -> Iterator[Advice]:
    """Name each scheduler of the first rank that is out of step for certain, and those that differ between ranks."""
    yield from _differing(run)
    for scheduler in run.any_facts().schedulers:
        if scheduler.interval == "epoch":
            yield from _once_per_epoch(scheduler)
        else:
            yield from _once_per_process(run, scheduler) or _once_per_batch(run, scheduler)


def _once_per_epoch(scheduler: SchedulerFacts) -> Iterator[Advice]:
    length, steps, epochs, advance = scheduler.length, scheduler.training_steps, scheduler.epochs, scheduler.advance
    if length is None or steps is None or not epochs or (advance is not None and advance > 0.5):
        return
    if length < steps or steps < LEAST_STEPS_PER_EPOCH * epochs:
        return
    made = epochs // (scheduler.frequency or 1)
    yield _advice(
        scheduler,
        title=f"{_named(scheduler)} is built for {length} steps but advances once per epoch: {made} steps in the whole "
        "training",
        why='Lightning steps a scheduler once per epoch unless its interval is "step". The learning rate stays near '
        "its first value.",
        evidence=[
            Evidence(label="length of the schedule", value=length, unit="steps"),
            Evidence(label="optimizer steps of the training", value=steps),
            Evidence(label="epochs of the training", value=epochs),
        ],
        remedy='Return {"scheduler": schedule, "interval": "step"} from configure_optimizers.',
    )


def _once_per_process(run: RunView, scheduler: SchedulerFacts) -> list[Advice]:
    facts, length, advance = run.any_facts(), scheduler.length, scheduler.advance
    loader = max(facts.loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
    if length is None or advance is None or facts.world_size < 2 or loader is None or length % ROUND == 0:
        return []
    if round(advance, 1) != facts.world_size or not loader.epoch_length or not loader.undivided_length:
        return []
    per_step = facts.batches_per_step()
    of_rank = epochs_of(length, loader.epoch_length, per_step)
    if of_rank is None or epochs_of(length, loader.undivided_length, per_step) is not None:
        return []
    epochs, steps = of_rank
    if steps < LEAST_STEPS_PER_EPOCH:
        return []
    end = -(-length // facts.world_size)
    advice = _advice(
        scheduler,
        title=f"{_named(scheduler)} is built for {length} optimizer steps ({epochs} x {steps} per epoch) but advances "
        f"{facts.world_size} steps in each: it ends after {end}",
        why="A scheduler that Accelerate has prepared makes one step per process in each optimizer step. This one is "
        "as long as the steps of one process.",
        evidence=[
            Evidence(label="scheduler steps per optimizer step", value=advance),
            Evidence(label="length of the schedule", value=length, unit="steps"),
            Evidence(label="optimizer steps per epoch", value=steps),
            Evidence(label="batches per epoch of all processes", value=loader.undivided_length),
        ],
        remedy="Multiply its length by accelerator.num_processes, or pass step_scheduler_with_optimizer=False to "
        "Accelerator.",
    )
    return [advice]


def _once_per_batch(run: RunView, scheduler: SchedulerFacts) -> list[Advice]:
    """One that counts epochs, most likely, but advances as often as the optimizer."""
    steps_per_epoch, advance = _steps_per_epoch(run, scheduler), scheduler.advance
    cosine = scheduler.name == "CosineAnnealingLR"
    length = scheduler.length if cosine else scheduler.decayed_after
    if not length or advance is None or advance < 0.9 or steps_per_epoch < LEAST_STEPS_PER_EPOCH:
        return []
    end = math.ceil(length / advance)
    passed = scheduler.advanced[-1] > length
    least = run.limit(TIMES_PASSED) if passed else run.limit(TIMES_AHEAD)
    if steps_per_epoch < end * least or not (passed or length <= (scheduler.epochs or 0)):
        return []
    certain = passed or length == scheduler.epochs
    after = f"falls and rises every {end} steps" if cosine else "stays at its end, near 0 or far below its first value"
    advice = _advice(
        scheduler,
        title=f"{_named(scheduler)} advances in every optimizer step and ends after {end:,} of the "
        f"{steps_per_epoch:,} in an epoch",
        why=f"Its length seems to count epochs, but it steps with the batches. From then on the learning rate {after}.",
        evidence=[
            Evidence(label="length of the schedule", value=length, unit="steps"),
            Evidence(label="scheduler steps per optimizer step", value=advance),
            Evidence(label="optimizer steps per epoch", value=steps_per_epoch),
            Evidence(label="steps of the scheduler when the recording ended", value=scheduler.advanced[-1]),
            *known("epochs of the training", scheduler.epochs),
        ],
        remedy="Step it after the loop over the batches, once per epoch, or give it its length in optimizer steps. "
        "Leave it where the training ends with it.",
        confidence="high" if certain else "medium",
    )
    return [advice]


def _steps_per_epoch(run: RunView, scheduler: SchedulerFacts) -> int:
    """Optimizer steps on this rank; 0 where the length of an epoch is not known."""
    if scheduler.training_steps and scheduler.epochs:
        return scheduler.training_steps // scheduler.epochs
    facts = run.any_facts()
    loader = max(facts.loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
    if loader is None or not loader.batches_drawn or not loader.epoch_length:
        return 0
    return loader.epoch_length // facts.batches_per_step()


def _named(scheduler: SchedulerFacts) -> str:
    return f"{scheduler.name} ({scheduler.where})" if scheduler.where else scheduler.name


def _advice(
    scheduler: SchedulerFacts,
    *,
    title: str,
    why: str,
    evidence: list[Evidence],
    remedy: str,
    confidence: Confidence = "high",
) -> Advice:
    return results_at_risk(
        RULE,
        title=title,
        why=why,
        evidence=[
            *evidence,
            *known("scheduler created at", scheduler.where),
            *known("stepped at", scheduler.stepped_at),
            *passed_at(scheduler, *_LENGTHS),
        ],
        remedy=remedy,
        subject=scheduler.name,
        confidence=confidence,
    )


def _differing(run: RunView) -> Iterator[Advice]:
    """Each `ReduceLROnPlateau` of a model that all ranks train whose steps get other values on other ranks."""
    if len(run.facts) < 2 or not _is_shared(run):
        return
    for of_ranks in zip(*(facts.plateaus for facts in run.facts), strict=False):
        calls = list(zip(*(plateau.values for plateau in of_ranks), strict=False))
        differing = [number for number, values in enumerate(calls) if _differ(values, run.limit(APART))]
        if len(differing) < LEAST_CALLS or len({plateau.where for plateau in of_ranks}) > 1:
            continue
        rates = [plateau.rates[len(calls) - 1] for plateau in of_ranks]
        yield _differing_advice(run, of_ranks[0], calls[differing[-1]], len(differing), len(calls), rates)


def _is_shared(run: RunView) -> bool:
    """Whether all ranks train one model."""
    return all(
        facts.fsdp or facts.engine or (facts.ddp and all(len(ddp.ranks) in (0, facts.world_size) for ddp in facts.ddp))
        for facts in run.facts
    )


def _differ(values: Sequence[float], limit: float) -> bool:
    if not all(map(math.isfinite, values)):
        return False
    return max(values) - min(values) > limit * max(map(abs, values))


def _differing_advice(
    run: RunView, plateau: PlateauFacts, values: Sequence[float], differing: int, calls: int, rates: Sequence[float]
) -> Advice:
    apart = max(rates) > min(rates)
    numbers = [facts.rank for facts in run.facts]
    then = ": learning rates differ between ranks" if apart else ""
    return results_at_risk(
        RULE,
        title=f"ReduceLROnPlateau{in_parentheses(plateau.stepped_at or plateau.where)} steps with a different value on "
        f"each rank{then}",
        why="Each rank lowers its learning rate by its own value. All ranks get the same gradients, so with different "
        "rates their weights differ.",
        evidence=[
            Evidence(label="calls with different values", value=differing, unit=f"of {calls}"),
            *(
                Evidence(label="value in the last of them", value=value, rank=number)
                for number, value in zip(numbers, values, strict=True)
            ),
            *(
                Evidence(label="learning rate after the last call", value=rate, rank=number)
                for number, rate in (zip(numbers, rates, strict=True) if apart else ())
            ),
            *known("scheduler created at", plateau.where),
        ],
        remedy="Average the value over all ranks (`dist.all_reduce`) before `step`; in Lightning, log it with "
        "`sync_dist=True`.",
        watch="Training results change for the better.",
        subject="plateau",
        impact="high" if apart else "medium",
    )
