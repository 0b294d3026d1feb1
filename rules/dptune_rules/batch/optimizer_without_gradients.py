"""An optimizer steps, but none of its parameters has a gradient.

## What it measures

In warm-up steps: whether any parameter of an optimizer has a gradient when it steps. The rule reports an optimizer for
which none had one in at least three steps, although backward passes ran. It also counts module parameters with
gradients that are in no optimizer. Steps with a closure are excluded.

## Why it matters

It costs correctness: these steps change nothing. Usually the optimizer was created before the model's parameters were
replaced: `fully_shard` and FSDP shard them into new tensors, and a model that is built or loaded again has new ones.
The optimizer still holds the old tensors; torch does not warn.

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

from dptune.advice import Advice, Evidence
from dptune.rule import OptimizerGradientFacts, Rule, RunView
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
    for found in next((facts.optimizer_gradients for facts in run.facts if facts.optimizer_gradients), []):
        if not found.has_none:
            continue
        yield results_at_risk(
            RULE,
            title=f"{found.optimizer}{in_parentheses(found.where)} changes nothing: none of its parameters "
            f"{'had a gradient' if found.tensors else 'requires gradients'}",
            why=_why(found),
            confidence="high" if found.elsewhere else "medium",
            evidence=[
                Evidence(
                    label="optimizer steps without gradients", value=found.without, unit=f"of {found.steps} in warm-up"
                ),
                *known("parameter tensors", found.tensors),
                *known("tensors with gradients that are in no optimizer", found.elsewhere),
                *known("optimizer steps at", found.step_where),
                *known("backward pass", found.backward_where),
            ],
            watch=_watch(found),
            subject=found.optimizer,
        )


def _why(found: OptimizerGradientFacts) -> str:
    if found.sharded and found.elsewhere:
        return "fully_shard replaces parameters: this optimizer was probably created before it and holds the old ones."
    if found.elsewhere:
        return "Other parameters have gradients, but are in no optimizer."
    return "Backward passes run, but give no parameter of this optimizer a gradient."


def _watch(found: OptimizerGradientFacts) -> str:
    if found.sharded and found.elsewhere:
        return "Create the optimizer after the last fully_shard call."
    if found.elsewhere:
        return "Create the optimizer after the model is complete: sharded, moved and loaded."
    return "Check whether the loss depends on this optimizer's parameters, and whether they require gradients."
