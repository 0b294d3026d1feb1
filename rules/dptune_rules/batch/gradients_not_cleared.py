"""Optimizer steps reuse gradients of earlier steps, or of another optimizer's loss.

## What it measures

In warm-up steps, on a sample of each optimizer's parameters: gradients that an optimizer step has used and that the
next backward passes add to. Gradients count as cleared if, before one of these passes, one of them is None, zero, in
other memory, or changed by the script. Excluded: steps that change no weight (of a wrapper that accumulates), steps
with a closure that runs backward passes, and libraries that keep gradients themselves.

With several optimizers, also gradients that a loss leaves on its way to the parameters of another optimizer, which
then steps: a generator's loss leaves gradients in the critic. They are reported if they are not cleared before the
backward pass for the critic's own step, and if the forward pass uses the critic after all that the other one trains.

## Why it matters

It hurts convergence. Backward passes add to existing gradients. Without `zero_grad`, each step uses the sum of the
gradients of all steps so far, like momentum without decay: old gradients, of earlier weights, soon outweigh the new
one. Adam normalizes the size of the sum, which hides the problem; the loss falls at first, then stops or rises.

## What to change

Clear gradients for each optimizer step, in the innermost loop:

    for rows in minibatches:
        optimizer.zero_grad()
        loss = criterion(model(rows), targets)
        loss.backward()
        optimizer.step()

With two optimizers, clear the critic's gradients after the generator's backward pass, at the latest before its own.

If steps were meant to accumulate micro-batches, call `optimizer.step()` as rarely as `zero_grad`.

## When to leave it alone

- The script carries part of the gradients over to the next step on purpose.

## References

- PyTorch, "Zeroing out gradients": https://pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html
- torch.optim.Optimizer.zero_grad:
  https://pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
- Reported from half of the steps: a script that steps after each of two micro-batches and clears after both keeps
  gradients in every second step.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import OptimizerGradientFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP305",
    name="gradients-not-cleared",
    family="batch",
    kind="risk",
    summary="optimizer steps reuse gradients of earlier steps, or of another optimizer's loss",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the optimizer whose gradients are not cleared between its steps, and the line of its steps."""
    if run.recorded_about("optimizer_gradients") is None:
        return
    seen: set[tuple[str, str | None]] = set()
    for found in next((facts.optimizer_gradients for facts in run.facts if facts.optimizer_gradients), []):
        stepped = (found.optimizer, found.step_where)  # a hook may step one optimizer for each parameter
        if not (found.keeps or found.mixes) or stepped in seen:
            continue
        seen.add(stepped)
        if not found.keeps:
            yield _of_another_loss(found)
            continue
        always = found.kept == found.steps - 1
        yield results_at_risk(
            RULE,
            title=f"Gradients are not cleared between steps of {found.optimizer}{in_parentheses(found.step_where)}: "
            f"{'each step reuses' if always else f'{found.kept} of {found.steps} steps reuse'} old gradients",
            why="Backward passes add to existing gradients, so these steps also apply gradients of earlier weights.",
            confidence="high" if always else "medium",
            evidence=[
                Evidence(label="steps that reuse old gradients", value=found.kept, unit=f"of {found.steps} in warm-up"),
                *known("backward pass", found.backward_where),
                *known("optimizer created at", found.where),
            ],
            remedy=_remedy(found),
            watch="Updates become smaller: check the learning rate.",
            subject=found.optimizer,
        )


def _of_another_loss(found: OptimizerGradientFacts) -> Advice:
    after = f" after the step at {found.others_where}" if found.others_where else ""
    before = f" ({found.backward_where})" if found.backward_where else ""
    return results_at_risk(
        RULE,
        title=f"Steps of {found.optimizer}{in_parentheses(found.step_where)} also use gradients of another optimizer's "
        f"loss, which are not cleared{after}",
        why="The other loss leaves gradients on its way to the parameters that it trains. Added to those of the own "
        "loss, they change these weights in favor of the other loss.",
        confidence="high" if found.of_others >= found.steps - 1 else "medium",
        evidence=[
            Evidence(label="steps that use them", value=found.of_others, unit=f"of {found.steps} in warm-up"),
            *known("backward pass", found.backward_where),
            *known("step of the other optimizer", found.others_where),
            *known("optimizer created at", found.where),
        ],
        remedy=f"Call zero_grad() of this optimizer before its backward pass{before}.",
        watch="Updates change: check the learning rate.",
        subject=f"{found.optimizer}:others",
    )


def _remedy(found: OptimizerGradientFacts) -> str:
    before = f" before the backward pass ({found.backward_where})" if found.backward_where else ""
    return (
        f"Call optimizer.zero_grad() for each step{before or ', before the backward pass'}; if gradients should "
        "accumulate over micro-batches, call optimizer.step() only after the last one."
    )
