"""An optimizer steps, but none of its parameters has a gradient.

## What it measures

In warm-up steps: whether any parameter of an optimizer has a gradient when it steps. The rule reports an optimizer for
which none had one in at least three steps, although backward passes ran. It also counts module parameters that get
gradients, are in no optimizer, and do not change.

Excluded: steps with a closure that runs backward passes, and optimizers whose parameters change anyway (gradients
taken from hooks) or are frozen while others train. While other optimizers train, confidence is high only if each
parameter tensor has the shape of a tensor that is in no optimizer, otherwise low.

## Why it matters

This is a correctness bug: these steps change nothing. Usually the optimizer was created before the model's parameters
were replaced: `fully_shard` and FSDP shard them into new tensors, and a model that is built or loaded again has new
ones. The optimizer still holds the old tensors; torch does not warn.

## What to change

Create the optimizer last:

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

## When to leave it alone

- Its parameters are trained only from a later step on, and the steps until then are meant to do nothing.

## References

- PyTorch, "Getting started with Fully Sharded Data Parallel (FSDP2)": the optimizer is created after `fully_shard`:
  https://pytorch.org/tutorials/intermediate/FSDP_tutorial.html
- Three steps, because some scripts step once or twice before training to silence a scheduler's warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Confidence, Evidence
from dptune.rule import OptimizerGradientFacts, Rule, RunView, discarding
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP306",
    name="optimizer-without-gradients",
    family="batch",
    kind="risk",
    summary="an optimizer steps, but none of its parameters has a gradient",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the optimizer that trains nothing, and the line that creates it."""
    if run.recorded_about("optimizer_gradients") is None:
        return
    ranks = [facts.optimizer_gradients for facts in run.facts if facts.optimizer_gradients]
    discarded = discarding([facts.discarded_gradients for facts in run.facts]) is not None
    seen: set[tuple[str, str | None]] = set()
    for position, found in enumerate(ranks[0] if ranks else []):
        made = (found.optimizer, found.where)
        if not found.has_none or made in seen or (found.cleared and discarded) or _has_some(ranks, position):
            continue
        seen.add(made)
        certain = found.elsewhere and (found.alike or not found.others_train)
        confidence: Confidence = "high" if certain else "low" if found.others_train else "medium"
        yield results_at_risk(
            RULE,
            title=f"{found.optimizer}{in_parentheses(found.where)} changes nothing: none of its parameters "
            + (
                ("had a gradient when it stepped" if found.cleared else "had a gradient")
                if found.tensors
                else "requires gradients"
            ),
            why=_why(found),
            confidence=confidence,
            impact="medium" if confidence == "low" else "high",
            evidence=[
                Evidence(
                    label="optimizer steps without gradients", value=found.without, unit=f"of {found.steps} in warm-up"
                ),
                *known("parameter tensors", found.tensors),
                *known("tensors with gradients that are in no optimizer", found.elsewhere),
                *known("optimizer steps at", found.step_where),
                *known("backward pass", found.backward_where),
            ],
            remedy=_remedy(found),
            subject=found.optimizer,
        )


def _has_some(ranks: list[list[OptimizerGradientFacts]], position: int) -> bool:
    """Whether the same optimizer has gradients on another rank, which may hold other shards or see other samples."""
    found = ranks[0][position]
    same = [rank[position] for rank in ranks[1:] if position < len(rank)]
    return any(
        (other.optimizer, other.where) == (found.optimizer, found.where) and other.without < other.steps
        for other in same
    )


def _why(found: OptimizerGradientFacts) -> str:
    if found.cleared:
        return "Backward passes leave gradients in its parameters, but these are cleared before it steps."
    if found.sharded and found.alike:
        return "fully_shard replaces parameters: this optimizer was probably created before it and holds the old ones."
    if found.elsewhere:
        return "Other parameters have gradients, but are in no optimizer."
    return "Backward passes run, but give no parameter of this optimizer a gradient."


def _remedy(found: OptimizerGradientFacts) -> str:
    if found.cleared:
        return "Clear gradients after the optimizer's step, or before the backward pass."
    if found.sharded and found.alike:
        return "Create the optimizer after the last fully_shard call."
    if found.elsewhere:
        return "Create the optimizer after the model is complete: sharded, moved and loaded."
    return "Check whether the loss depends on this optimizer's parameters, and whether they require gradients."
