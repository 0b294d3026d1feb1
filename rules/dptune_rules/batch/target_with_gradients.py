"""Gradients flow through the target of a temporal-difference loss.

## What it measures

The autograd graph of losses in the warm-up steps: a squared, Huber or smooth L1 loss that compares a value with
`reward + discount * value`, where the gradients of both values reach the same parameters. The discount is a factor
between 0.5 and 1, times a mask of episode ends if there is one.

A residual of an equation, for example `net(t + dt) - (force + 0.98 * net(t))`, has the same graph. A target is
recognized by a mask of episode ends, by a selection among actions (`gather`, `max`, an index), or by row order: the
discounted values are later rows of the same output. Losses that discount the earlier rows are skipped. Without a mask,
a selection or row order, losses are also skipped if the model is evaluated at points that require gradients, or if the
inputs of both values differ by a constant shift; the remaining findings have low confidence.

## Why it matters

In Q-learning and actor-critic methods, the target is a constant: only the prediction moves towards it. If gradients
flow through the target, each step also moves the value of the next state towards the value of this one. This is another
objective (the squared Bellman error); in stochastic environments its minimum differs from the value function, and
learning is slower. The backward pass through the target also costs time.

## What to change

    with torch.no_grad():
        target = reward + discount * (1 - done) * value(next_state)

or `target.detach()` in the loss. Q-learning is more stable with a target network, a copy of the model that is updated
slowly.

## When to leave it alone

- Residual-gradient methods minimize the squared Bellman error on purpose.
- The loss is the residual of an equation between two outputs of a model, as in physics-informed networks: both sides
  need gradients. Such a loss may still be reported, with low confidence, if the inputs do not differ by a constant
  shift.

## References

- Sutton, Barto, "Reinforcement Learning: An Introduction" (2018), section 9.3 on semi-gradient methods and section 11.5
  on the Bellman error: http://incompleteideas.net/book/the-book-2nd.html
- Baird, "Residual Algorithms" (1995), on the convergence speed of both.
- PyTorch, "Reinforcement Learning (DQN) Tutorial", which computes targets without gradients:
  https://pytorch.org/tutorials/intermediate/reinforcement_q_learning.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import BootstrappedTargetFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP313",
    name="target-with-gradients",
    family="batch",
    kind="risk",
    summary="gradients flow through the target of a temporal-difference loss",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)
LEAST_PASSES = 2
# What the observer recognizes a target by.
_SIGNS = {"episode ends": "a mask of episode ends", "actions": "a selection among actions", "order": "row order"}
REMEDY = "Compute the target under `torch.no_grad()`, or pass `target.detach()` to the loss."


def check(run: RunView) -> Iterator[Advice]:
    """Name the target of the first rank that has one."""
    if run.recorded_about("bootstrapped_targets") is None:
        return
    for facts in run.facts:
        possible = [found for found in facts.bootstrapped_targets if 0 < found.discount < 1]
        found = [found for found in possible if LEAST_PASSES <= found.passes <= found.passes_seen]
        if found:
            yield _advice(max(found, key=lambda target: (bool(target.sign), target.passes)))
            return


def _advice(found: BootstrappedTargetFacts) -> Advice:
    where = in_parentheses(found.where or found.loss_where)
    target = f"`reward + {found.discount:g} * value`{where}"
    title = f"Gradients flow through the target {target}: each step also changes the value of the next state"
    if not found.sign:
        target = f"`constant + {found.discount:g} * value`{where}"
        title = f"Gradients flow through both sides of a loss that compares a value with {target}: possibly a "
        title += "temporal-difference target"
    return results_at_risk(
        RULE,
        title=title,
        why="Temporal-difference learning treats the target as a constant. Otherwise the loss is the squared Bellman "
        "error, which has a different minimum and learns more slowly.",
        confidence="medium" if found.sign else "low",
        impact="high" if found.sign else "medium",
        evidence=[
            Evidence(label="backward passes with this loss", value=found.passes, unit=f"of {found.passes_seen}"),
            Evidence(label="parameter tensors that both values depend on", value=found.parameters),
            *known("recognized as a target by", _SIGNS.get(found.sign)),
            *known("compared at", found.loss_where),
        ],
        remedy=REMEDY if found.sign else f"If this is a temporal-difference target: {REMEDY[0].lower()}{REMEDY[1:]}",
        watch="Residual-gradient methods and residuals of equations need gradients on both sides.",
        subject=found.loss,
    )
