"""A loss that expects logits is given probabilities.

## What it measures

In warm-up steps, the functions that each backward pass will run, from the loss back to the model's outputs: whether the
log_softmax of a cross-entropy, or a loss `..._with_logits`, takes the result of a softmax or a sigmoid, with nothing
between them but changes of layout. A second softmax must be over the same dimension. Losses inside a part compiled by
torch.compile are not seen.

## Why it matters

It costs convergence. Probabilities lie between 0 and 1, so the second softmax can give no class more than
e / (e + classes - 1): 17 % with 14 classes. Even a perfect model has a loss of ln(e + classes - 1) - 1, and gradients
are small because both softmaxes flatten them. The model trains slowly and torch does not warn.
`binary_cross_entropy_with_logits` after a sigmoid sees no logit below 0, so a negative sample costs at least
ln 2 = 0.69.

## What to change

Return the logits, and apply softmax only where probabilities are needed:

    logits = model(inputs)
    loss = F.cross_entropy(logits, targets)
    probabilities = logits.softmax(dim=1)

## When to leave it alone

- An experiment limits the logits on purpose. A scale shows this: `cross_entropy(probabilities / temperature, targets)`
  is not reported.

## References

- PyTorch, CrossEntropyLoss, "The input is expected to contain the unnormalized logits for each class":
  https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
- PyTorch, BCEWithLogitsLoss, which "combines a Sigmoid layer and the BCELoss in one single class":
  https://pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import ProbabilityLossFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP407",
    name="softmax-before-cross-entropy",
    family="precision",
    kind="risk",
    summary="a loss that expects logits is given the outputs of a softmax or a sigmoid",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each loss of the first rank that has one."""
    if run.recorded_about("probability_losses") is None:
        return
    for losses in [facts.probability_losses for facts in run.facts if facts.probability_losses][:1]:
        yield from map(_advice, losses)


def _advice(found: ProbabilityLossFacts) -> Advice:
    at = f" ({found.where})" if found.where and found.where != found.loss_where else ""
    loss_at = in_parentheses(found.loss_where)
    return results_at_risk(
        RULE,
        title=f"{_name(found)}{loss_at} expects logits and gets {found.applied} outputs{at}{_floor(found)}",
        why=_why(found),
        evidence=[
            Evidence(label="backward passes with this loss", value=found.passes, unit=f"of {found.passes_seen}"),
            *known("classes", found.classes),
            *([] if found.least_loss is None else [Evidence(label="lowest possible loss", value=found.least_loss)]),
            *known(f"{found.applied} applied at", found.where),
            *known("loss computed at", found.loss_where),
        ],
        remedy=f"Return the logits, and apply {found.applied} only where probabilities are needed.",
        watch="Losses before and after the change cannot be compared.",
        subject=f"{found.loss}:{found.applied}",
    )


def _name(found: ProbabilityLossFacts) -> str:
    return "The cross-entropy loss" if found.loss == "log_softmax" else f"The loss {found.loss}"


def _floor(found: ProbabilityLossFacts) -> str:
    if found.least_loss is None:
        return ""
    return f": with {found.classes} classes it cannot fall below {found.least_loss:.2f}"


def _why(found: ProbabilityLossFacts) -> str:
    if found.loss == "log_softmax":
        return (
            "The loss applies softmax itself. Its inputs lie between 0 and 1, so it can give no class a probability "
            "near 1, and gradients stay small."
        )
    return (
        "The loss applies a sigmoid itself. Its inputs lie between 0 and 1, so it can give no probability below 0.5 "
        "or above 0.73, and gradients stay small."
    )
