"""No gradient reaches a part of the model, although it runs and the optimizer holds its parameters.

## What it measures

In warm-up steps, for each optimizer: parameters that require gradients and have none at any step, although their module
runs with gradients enabled before each step, and its output requires gradients. Reported if they are a tenth of the
optimizer's parameters or more. Parameters that get a gradient in some steps, that have gradient hooks or whose values
change, modules that do not run, engines, sharded and compiled models are left out.

## Why it matters

These parameters keep their initial values: the optimizer skips parameters without a gradient. The output of the module
is either not used by the loss, or cut from the graph, for example by `.detach()`, `.data`, `.item()`, `.numpy()`,
`argmax`, `torch.tensor(output)` or `torch.no_grad()`. No error is raised as long as another part gets gradients.

## What to change

Find where the output of the named module leaves the graph, and use the tensor itself:

    features = encoder(images)  # not encoder(images).detach()
    loss = criterion(head(features), labels)

If the part should not be trained, set `requires_grad_(False)` on it, and give the optimizer only the others.

## When to leave it alone

- The part is frozen on purpose for the first steps, by `.detach()`, and trained later.

## References

- PyTorch, "Autograd mechanics", on `requires_grad` and locally disabled gradients:
  https://pytorch.org/docs/stable/notes/autograd.html
- torch.Tensor.detach: https://pytorch.org/docs/stable/generated/torch.Tensor.detach.html
- A tenth: scripts often leave out the output of a small part of a pretrained model. BERT's pooler has 0.5 % of its
  parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

WORTH_SHARE = Threshold("worth_share", 0.1, "of the parameters: an unused head of a pretrained model has fewer")
LEAST_STEPS = 2  # after the first step, which finds the parameters without a gradient

RULE = Rule(
    code="DP308",
    name="unreached-parameters",
    family="batch",
    kind="risk",
    summary="no gradient reaches a part of the model, although it runs and the optimizer holds its parameters",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the modules that run without getting gradients."""
    if run.recorded_about("unreached") is None:
        return
    for found in next((facts.unreached for facts in run.facts if facts.unreached), []):
        share = found.unreached / found.parameters if found.parameters else 0.0
        if found.steps < LEAST_STEPS or share < run.limit(WORTH_SHARE):
            continue
        names = ", ".join(f"`{name}`" for name in found.names)
        yield results_at_risk(
            RULE,
            title=f"No gradient reaches {names}: {100 * share:.0f} % of the parameters of {found.optimizer}"
            f"{in_parentheses(found.where)} are not updated",
            why="The modules run with gradients enabled, but their outputs are detached, or not used by the loss.",
            evidence=[
                Evidence(label="parameters without a gradient", value=found.unreached, unit=f"of {found.parameters:,}"),
                Evidence(label="steps in which their modules ran", value=found.runs, unit=f"of {found.steps}"),
                *known("optimizer created at", found.where),
            ],
            remedy="Look for .detach(), .data, .item(), .numpy(), argmax or no_grad between these modules and the "
            "loss. If they should stay fixed, set requires_grad_(False).",
            subject=found.optimizer,
        )
