"""A loss compares each prediction with each target.

## What it measures

In warm-up steps, the functions that a backward pass will run: whether a difference or product of B predictions and
B targets is B x B, and is reduced to the loss. Where the graph shows one, dptune watches that operator in the next
steps and reads both shapes. Reported are (B, 1) against (B,), in either order, where the targets have no gradient.

Predictions that the script has given a dimension with `unsqueeze` or `[:, None]` are meant to be compared with all
targets, and so is a result that is multiplied by a matrix or goes through another function, as in contrastive losses,
attention and optimal transport. These are not reported. Neither are losses that torch.compile hides.

## Why it matters

It hurts convergence. The shapes (B, 1) and (B,) broadcast to (B, B): each prediction is compared with the targets of
all samples. The mean squared error is then least where all predictions equal the mean target, so the model learns a
constant. The loss falls to the variance of the targets and stays there. torch warns only in its own loss functions, and
not for `(predictions - targets) ** 2`.

## What to change

Give both the same shape:

    predictions = model(inputs).squeeze(-1)      # (B,)
    loss = (predictions - targets).square().mean()

## When to leave it alone

- The loss is meant over all pairs. State it with `predictions[:, None] - targets[None]`.

## References

- PyTorch, broadcasting semantics: https://pytorch.org/docs/stable/notes/broadcasting.html
- torch.nn.functional.mse_loss, which warns: "This will likely lead to incorrect results due to broadcasting":
  https://pytorch.org/docs/stable/generated/torch.nn.functional.mse_loss.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import BroadcastLossFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP408",
    name="loss-broadcast",
    family="precision",
    kind="risk",
    summary="predictions and targets broadcast in the loss: each prediction is compared with each target",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each such operator of the first rank that has one."""
    run.any_facts()
    for losses in [facts.broadcast_losses for facts in run.facts if facts.broadcast_losses][:1]:
        yield from map(_advice, losses)


def _advice(found: BroadcastLossFacts) -> Advice:
    at = in_parentheses(found.where)
    predictions, targets = _shape(found.predictions), _shape(found.targets)
    count = max(found.predictions)
    longer = "predictions" if len(found.predictions) > len(found.targets) else "targets"
    return results_at_risk(
        RULE,
        title=f"The loss compares each prediction with the targets of all samples{at}: predictions {predictions} and "
        f"targets {targets} broadcast to ({count}, {count})",
        why="Such a loss is lowest where all predictions are equal, so the model learns a constant.",
        evidence=[
            Evidence(label="shape of the predictions", value=predictions),
            Evidence(label="shape of the targets", value=targets),
            Evidence(label="backward passes with this loss", value=found.passes, unit=f"of {found.passes_seen}"),
            Evidence(label="operator", value=found.operator),
            *known("called at", found.where),
        ],
        remedy=f"Give predictions and targets the same shape, for example with .squeeze(-1) on the {longer}.",
        watch="Losses before and after the change cannot be compared.",
        subject=found.operator,
    )


def _shape(lengths: list[int]) -> str:
    return f"({lengths[0]},)" if len(lengths) == 1 else f"({', '.join(map(str, lengths))})"
