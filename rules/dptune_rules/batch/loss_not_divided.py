"""Gradients of micro-batches are summed, not averaged.

## What it measures

In warm-up steps: optimizer steps that use the gradients of several backward passes. Reported if at least two such
steps were seen, and in each of them:

- all passes come from one line, and each starts from a mean loss with a factor of about 1, apart from the scale of a
  GradScaler;
- each pass has a new batch of the same loader; without a loader, each has a graph and targets of its own, and all reach
  the same parameters (others belong to several tasks, views or networks);
- sampled values of a gradient show that the script does not divide it before the step.

Clipping that shrinks a gradient by more than the number of passes looks like a division, so nothing is reported then.
Libraries that accumulate divide the loss themselves. Steps with a closure, and losses and parameters with hooks, are
left out.

## Why it matters

It can hurt convergence. Each backward pass adds its gradient, and the mean over N micro-batches is the sum divided by
N. Without the division the gradient is N times that of one large batch: SGD takes steps N times as large, and gradient
clipping limits most steps instead of a few. Adam-like optimizers divide by the size of the gradients, so only clipping,
epsilon and an L2 penalty act differently.

## What to change

    (loss / accumulation_steps).backward()

With Accelerate, pass `gradient_accumulation_steps` to `Accelerator`, whose `backward` divides.

## When to leave it alone

- The learning rate was chosen for the sum. It then changes with the number of micro-batches.
- The losses of several tasks are meant to be summed.

## References

- PyTorch, "Gradient accumulation", which divides the loss: https://pytorch.org/docs/stable/notes/amp_examples.html
- Accelerate, "Performing gradient accumulation":
  https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
- Kingma, Ba, "Adam" (2015), section 2.1: the step is invariant to the scale of the gradients:
  https://arxiv.org/abs/1412.6980
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Impact
from dptune.rule import Rule, RunView, UndividedLossFacts
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

LEAST_STEPS = 2
SCALE_FREE = (
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Adafactor",
    "Lion",
    "LAMB",
)

RULE = Rule(
    code="DP310",
    name="loss-not-divided",
    family="batch",
    kind="risk",
    summary="gradients of micro-batches are summed, not averaged",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each line whose backward passes add up mean losses."""
    if run.recorded_about("undivided_losses") is None:
        return
    facts = next((facts for facts in run.facts if facts.undivided_losses), None)
    for found in facts.undivided_losses if facts else []:
        if found.passes > 1 and found.steps >= LEAST_STEPS and found.undivided == found.steps:
            lines = [line.where for line in facts.clipping if line.optimizer == found.optimizer] if facts else []
            yield _advice(found, next(iter(lines), None))


def _advice(found: UndividedLossFacts, clipped: str | None) -> Advice:
    scale_free = found.optimizer in SCALE_FREE
    impact: Impact = "high" if not scale_free else "medium" if clipped else "low"
    at = f" ({found.where})" if found.where else ""
    return results_at_risk(
        RULE,
        title=f"Gradients of {found.passes} micro-batches are summed, not averaged{at}: {_effect(found, clipped)}",
        why=f"Each backward pass adds the gradient of a mean loss. The mean over {found.passes} micro-batches is the "
        f"sum divided by {found.passes}.",
        impact=impact,
        confidence="high" if found.drawn else "medium",
        evidence=[
            Evidence(label="backward passes per step", value=found.passes),
            Evidence(label="steps with undivided gradients", value=found.undivided, unit=f"of {found.steps}"),
            *known("gradients clipped at", clipped),
            *known("optimizer steps at", found.step_where),
        ],
        remedy=f"Divide the loss by {found.passes} before the backward pass{at}.",
        watch=f"Gradients are then {found.passes} times smaller: check the learning rate and the clipping limit. Keep "
        "the sum if the learning rate was tuned for it.",
        subject=found.optimizer,
    )


def _effect(found: UndividedLossFacts, clipped: str | None) -> str:
    if found.optimizer not in SCALE_FREE:
        return f"{found.optimizer} uses {found.passes} times the mean gradient"
    if clipped:
        return f"clipping ({clipped}) limits {found.passes} times the mean gradient"
    return f"{found.optimizer} mostly cancels the factor of {found.passes}"
