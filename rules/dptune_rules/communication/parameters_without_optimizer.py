"""Parameters get gradients in each step, but no optimizer holds them.

## What it measures

Parameters that a backward pass computes gradients of, that no optimizer of the process holds, and whose values do not
change during recording, while an optimizer holds other parameters of the same pass. If their module got them after the
optimizer was created, dptune names that line.

A model of which only the last layers are trained, and a separate network in evaluation mode (a perceptual loss, a
teacher), are not reported here: see DP109.

## Why it matters

This is a correctness bug. These parameters are never updated: the layer keeps its initial weights. Usually the layer
was replaced or added after the optimizer was created, or the list of parameters passed to the optimizer lacks a module.
The optimizer of a replaced layer still holds the old parameters, which get no gradient any more; torch does not warn.

## What to change

Create the optimizer after the last change of the model:

    model.fc = nn.Linear(model.fc.in_features, classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

Modules in a plain list or dict are not registered: put them in an `nn.ModuleList` or `nn.ModuleDict`.

Or pass the new parameters to it: `optimizer.add_param_group({"params": model.fc.parameters()})`. If the parameters
should keep their values, call `requires_grad_(False)` on them.

## When to leave it alone

- An optimizer gets the parameters later in training (gradual unfreezing).
- The script updates them itself, in steps that were not recorded.

## References

- PyTorch, `torch.optim`, "Constructing it", and `Optimizer.add_param_group`: https://pytorch.org/docs/stable/optim.html
- There is no threshold: a single tensor that is never updated can be a fault.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import LeftOutFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP113",
    name="parameters-without-optimizer",
    family="communication",
    kind="risk",
    summary="parameters get gradients but no optimizer holds them: they are never updated",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the parameters, the line that makes the optimizer, and the one that adds them later."""
    run.any_facts()
    reported = set()
    for missed in next((facts.left_out for facts in run.facts if facts.left_out), []):
        subject = ", ".join(missed.modules) or "parameters"
        if subject in reported:  # by another pass
            continue
        reported.add(subject)
        yield results_at_risk(
            RULE,
            title=_title(missed),
            why=_reason(missed),
            confidence="high" if missed.added_later else "medium",
            evidence=[
                Evidence(label="parameter tensors without an optimizer", value=missed.tensors),
                Evidence(label="parameter tensors with gradients", value=missed.of_tensors),
                *known("optimizer created at", missed.optimizer_where),
                *known("added later at", missed.added_where),
                *known("held in a plain list or dict at", missed.listed_where),
                *known("backward pass", missed.where),
            ],
            remedy=_remedy(missed) + " If they should keep their values, call requires_grad_(False) on them.",
            subject=subject,
        )


def _title(missed: LeftOutFacts) -> str:
    parameters = f"{missed.parameters:,} {'parameter' if missed.parameters == 1 else 'parameters'}{_of(missed)}"
    optimizer = f"{missed.optimizer}{in_parentheses(missed.optimizer_where)}"
    if missed.listed_in:
        listed = f"`{missed.listed_in}`{in_parentheses(missed.listed_where)}"
        return f"{listed} hides {parameters} from {optimizer}: they get gradients and are never updated"
    return f"{optimizer} does not hold {parameters} that get gradients: they are never updated"


def _of(missed: LeftOutFacts) -> str:
    names = [f"layer `{name}`" if name.isdigit() else f"`{name}`" for name in missed.modules]
    return f" of {', '.join(names)}" if names else ""


def _reason(missed: LeftOutFacts) -> str:
    if missed.listed_in:
        return (
            f"`{missed.listed_in}` is a plain list or dict, so `parameters()`, `to()`, `train()` and `state_dict()` do "
            "not reach its modules."
        )
    if not missed.added_later:
        return "No optimizer of this process holds them, and their values do not change."
    where = f" in {missed.added_where}" if missed.added_where else ""
    return f"They were added to the model{where} after the optimizer was created, so the optimizer does not hold them."


def _remedy(missed: LeftOutFacts) -> str:
    if missed.listed_in:
        return f"Make `{missed.listed_in}` an nn.ModuleList or nn.ModuleDict."
    if missed.added_later:
        return "Create the optimizer after the model is complete, or call optimizer.add_param_group for them."
    return "Pass them to the optimizer."
