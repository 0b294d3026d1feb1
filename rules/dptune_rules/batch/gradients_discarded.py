"""Gradients are cleared before the optimizer uses them.

## What it measures

In warm-up steps, on a sample of each optimizer's parameters: backward passes whose gradients are cleared, by
`zero_grad` or by `parameter.grad = None`, before any optimizer steps. A pass counts only if

- the same lines of the script run it as the pass that the step uses,
- the weights do not change between the pass and the clearing, as they do where a script updates them itself,
- the gradients of the step are those of the last pass times one factor (clipping, unscaling). A script that collects
  gradients itself and sets them before the step, for example for per-sample clipping, is not reported.

Backward passes that update one network and leave gradients in another, as in a GAN, are used by an optimizer step.
Steps that a GradScaler skips, and passes inside a closure, count as used.

## Why it matters

It hurts convergence. With k micro-batches per optimizer step and `zero_grad` before each, only the last one is used:
the time for the others is lost, and the step uses 1/k of the intended batch. If the loss is divided by k, gradients are
also k times too small, which Adam hides and SGD does not. The loss falls, only more noisily.

## What to change

Call `zero_grad` once per optimizer step, after it:

    for number, (inputs, targets) in enumerate(loader):
        loss = criterion(model(inputs), targets) / accumulate
        loss.backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()

The batch that an optimizer step uses is then k times as large: check the learning rate.

## When to leave it alone

- The script reads the gradients in between, for example to log them, and is meant to train on the last batch only.

## References

- PyTorch, gradient accumulation: https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
- torch.optim.Optimizer.zero_grad:
  https://pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import DiscardedGradientFacts, Rule, RunView, discarding
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP304",
    name="gradients-discarded",
    family="batch",
    kind="risk",
    summary="gradients are cleared before the optimizer uses them",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the line that clears gradients between a backward pass and its optimizer step."""
    if run.recorded_about("discarded_gradients") is None:
        return
    found = discarding([facts.discarded_gradients for facts in run.facts])
    if found is None:
        return
    passes, discarded = found.usual
    accumulates = run.any_facts().accumulates()
    if passes > discarded and accumulates is False:
        return
    at = in_parentheses(found.where)
    yield results_at_risk(
        RULE,
        title=f"Gradients of {_count(passes, discarded)} are cleared before the optimizer uses them{at}",
        why=_why(passes, discarded),
        confidence="high" if accumulates or passes == discarded else "medium",
        evidence=[
            Evidence(label="backward passes", value=passes, unit="per optimizer step"),
            Evidence(label="passes whose gradients are cleared", value=discarded, unit="per optimizer step"),
            Evidence(label="optimizer steps with such passes", value=found.step_share, unit="of the warm-up steps"),
            *known("gradients cleared at", found.where),
            *known("backward pass at", found.backward_where),
        ],
        remedy=_remedy(found, passes, discarded),
        watch=_watch(passes, discarded),
        subject="zero_grad",
    )


def _count(passes: int, discarded: int) -> str:
    if passes == discarded:
        return "all backward passes" if passes > 1 else "each backward pass"
    return f"{discarded} of {passes} backward passes per optimizer step"


def _why(passes: int, discarded: int) -> str:
    if passes == discarded:
        return "The optimizer then steps without gradients: no weight is trained."
    used = passes - discarded
    last = "only the last micro-batch counts" if used == 1 else f"only the last {used} micro-batches count"
    return f"Accumulated gradients are lost: {last}, and the time for the others is wasted."


def _remedy(found: DiscardedGradientFacts, passes: int, discarded: int) -> str:
    where = f" instead of at {found.where}" if found.where else ""
    once = "" if passes == discarded else " once per optimizer step,"
    return f"Call zero_grad{once} after optimizer.step(){where}."


def _watch(passes: int, discarded: int) -> str:
    if passes == discarded:
        return ""
    return f"An optimizer step then uses {passes / (passes - discarded):g}x the samples: check the learning rate."
