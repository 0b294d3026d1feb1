"""A learning-rate schedule advances faster or slower than the training that it is built for.

## What it measures

How many steps a scheduler makes per optimizer step, against the length that it is built with (`total_steps`, `T_max`,
`total_iters`, `num_training_steps`, or the largest whole number that the function of a `LambdaLR` is bound to):

- Lightning steps it once per epoch, but it is at least as long as all optimizer steps of the training.
- It advances once per process in each optimizer step, as one prepared by Accelerate does, but its length is a whole
  number of epochs of one process and not of all processes. Round lengths (multiples of 50) are not judged.

## Why it matters

It costs convergence. A schedule that steps once per epoch stays in its warm-up: a one-cycle schedule never reaches its
maximum rate. One that advances once per process ends early: with two processes the rate is zero in the second half of
the training, and those steps train nothing.

## What to change

In Lightning, return the scheduler with the interval in which it counts:

    return [optimizer], [{"scheduler": schedule, "interval": "step"}]

With Accelerate, count the steps of all processes, because `schedule.step()` makes `num_processes` steps:

    total = epochs * len(loader) * accelerator.num_processes

or pass `step_scheduler_with_optimizer=False` to `Accelerator`; then step it only where the optimizer steps.

## When to leave it alone

- The schedule ends early on purpose.

## References

- Lightning, "Learning rate scheduling", on `interval`:
  https://lightning.ai/docs/pytorch/stable/common/optimization.html
- Accelerate, "Comparing performance across distributed setups", on learning rates: "a learning rate scheduler will be
  stepped `num_processes` times": https://huggingface.co/docs/accelerate/concept_guides/performance
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, SchedulerFacts, epochs_of
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

RULE = Rule(
    code="DP303",
    name="schedule-out-of-step",
    family="batch",
    kind="risk",
    summary="a learning-rate schedule advances faster or slower than the training that it is built for",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)

LEAST_STEPS_PER_EPOCH = 10  # below, a length in steps and one in epochs cannot be distinguished
ROUND = 50  # multiples of it may have been chosen by hand


def check(run: RunView) -> Iterator[Advice]:
    """Name each scheduler of the first rank that is out of step for certain."""
    for scheduler in run.any_facts().schedulers:
        if scheduler.interval == "epoch":
            yield from _once_per_epoch(scheduler)
        else:
            yield from _once_per_process(run, scheduler)


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
        watch='Return {"scheduler": schedule, "interval": "step"} from configure_optimizers.',
    )


def _once_per_process(run: RunView, scheduler: SchedulerFacts) -> Iterator[Advice]:
    facts, length, advance = run.any_facts(), scheduler.length, scheduler.advance
    loader = max(facts.loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
    if length is None or advance is None or facts.world_size < 2 or loader is None or length % ROUND == 0:
        return
    if round(advance, 1) != facts.world_size or not loader.epoch_length or not loader.undivided_length:
        return
    per_step = facts.batches_per_step()
    of_rank = epochs_of(length, loader.epoch_length, per_step)
    if of_rank is None or epochs_of(length, loader.undivided_length, per_step) is not None:
        return
    epochs, steps = of_rank
    if steps < LEAST_STEPS_PER_EPOCH:
        return
    end = -(-length // facts.world_size)
    yield _advice(
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
        watch="Multiply its length by accelerator.num_processes, or pass step_scheduler_with_optimizer=False to "
        "Accelerator.",
    )


def _named(scheduler: SchedulerFacts) -> str:
    return f"{scheduler.name} ({scheduler.where})" if scheduler.where else scheduler.name


def _advice(scheduler: SchedulerFacts, *, title: str, why: str, evidence: list[Evidence], watch: str) -> Advice:
    return results_at_risk(
        RULE,
        title=title,
        why=why,
        evidence=[*evidence, *known("scheduler made at", scheduler.where)],
        watch=watch,
        subject=scheduler.name,
    )
