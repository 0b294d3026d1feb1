"""An optimizer steps at a learning rate of zero.

## What it measures

The learning rates of all parameter groups at each optimizer step, until the recording ends. Reported if at least ten
steps, at least half of all, and the last one have a rate of exactly zero in every group. Rates that are tensors are not
read.

## Why it matters

Such a step leaves the weights unchanged (AdamW multiplies weight decay by the rate, too). Usual causes: a warm-up that
starts at zero while `scheduler.step()` is never called, integer division in the function of a `LambdaLR`, and a
schedule that ends before training does.

## What to change

Call `scheduler.step()` after each `optimizer.step()` if the warm-up counts steps, or make the schedule as long as the
training.

## When to leave it alone

- The optimizer is switched off on purpose by its rate. Skipping its step saves time.

## References

- PyTorch, "How to adjust learning rate": https://pytorch.org/docs/stable/optim.html
- transformers, `get_linear_schedule_with_warmup`, whose first rate is zero:
  https://huggingface.co/docs/transformers/main_classes/optimizer_schedules
- Ten steps: a warm-up often has one step at zero, and some schedules restart at zero.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, SchedulerFacts
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

LEAST_STEPS = 10

RULE = Rule(
    code="DP309",
    name="zero-learning-rate",
    family="batch",
    kind="risk",
    summary="an optimizer steps at a learning rate of zero",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the optimizers whose steps mostly have a learning rate of zero."""
    if run.recorded_about("zero_rates") is None:
        return
    facts = next((facts for facts in run.facts if facts.zero_rates), None)
    for found in facts.zero_rates if facts else []:
        if not found.last_zero or found.zero < LEAST_STEPS or 2 * found.zero < found.steps:
            continue
        schedule = facts.schedulers[0] if facts and len(facts.schedulers) == 1 else None
        often = "all" if found.zero == found.steps else f"{found.zero} of"
        yield results_at_risk(
            RULE,
            title=f"{found.optimizer}{in_parentheses(found.where)} takes {often} {found.steps} recorded steps at a "
            "learning rate of 0, which leaves the weights unchanged",
            why=_why(schedule),
            evidence=[
                Evidence(label="steps at a learning rate of 0", value=found.zero, unit=f"of {found.steps}"),
                *known("scheduler created at", schedule.where if schedule else None),
                *known("scheduler stepped at", schedule.stepped_at if schedule else None),
            ],
            remedy="Call scheduler.step() in each step of its warm-up, or check the length of the schedule.",
            subject=found.optimizer,
        )


def _why(schedule: SchedulerFacts | None) -> str:
    if schedule is None:
        return "The update is the learning rate times the gradient, or a function of it."
    if schedule.advanced and schedule.advanced[-1] == 0:
        return f"The schedule ({schedule.name}) starts at 0, and scheduler.step() was not called."
    return f"The schedule ({schedule.name}) gives 0 at this step."
