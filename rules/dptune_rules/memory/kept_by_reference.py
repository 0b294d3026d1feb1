"""Weights are kept without a copy, and training changes them.

## What it measures

Results of `state_dict()` of a module, from the first optimizer step on: whether they still exist two optimizer steps
later, share memory with the parameters, and were not saved to a file before. A local variable that is not read later is
not reported. The source shows what reads the kept weights later, if it is in the same file.

If the recording ends before the script keeps any, dptune reads its source: an assignment of a bare `state_dict()` under
a comparison, as of the best loss so far, that a later `load_state_dict` reads. This has medium confidence.

## Why it matters

The weights that were to be kept are lost. `state_dict()` returns references: each optimizer step changes the kept
tensors as well. At the end the "best" weights are the last ones, and early stopping restores nothing.

## What to change

Copy the tensors when they are kept:

    best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

or `copy.deepcopy(model.state_dict())`, or save them to a file. `.cpu()` copies on a GPU, but not on a CPU, where it
returns the same tensor.

## When to leave it alone

- The weights are kept only to be read before the next optimizer step.

## References

- PyTorch, Saving and Loading Models: "`best_model_state = model.state_dict()` returns a reference to the state and not
  its copy": https://pytorch.org/tutorials/beginner/saving_loading_models.html
- torch.nn.Module.state_dict: https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.state_dict
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import KeptWeightFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP805",
    name="kept-by-reference",
    family="memory",
    kind="risk",
    summary="weights are kept without a copy, and training changes them",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each line of the first rank that keeps weights."""
    run.any_facts()
    for facts in run.facts[:1]:
        yield from map(_advice, facts.kept_weights)


def _advice(kept: KeptWeightFacts) -> Advice:
    held = f"`{kept.held_by}`" if kept.held_by else "A `state_dict()`"
    at = in_parentheses(kept.where)
    model = f" of `{kept.module}`" if kept.module else ""
    later = f", and {kept.used_where} reads them later" if kept.used_where else ""
    return results_at_risk(
        RULE,
        title=f"{held} keeps weights{model} without a copy{at}: training changes them{later}",
        why="state_dict() returns references to the parameters, which each optimizer step changes in place.",
        confidence="high" if kept.steps and kept.used_where else "medium",
        evidence=[
            *(
                [
                    Evidence(label="kept tensors that share memory", value=kept.tensors, unit="of those compared"),
                    Evidence(label="kept for", value=kept.steps, unit="optimizer steps so far"),
                ]
                if kept.steps
                else [Evidence(label="seen in the source only", value=kept.where or "")]
            ),
            *known("read later at", kept.used_where),
        ],
        remedy="Copy the tensors when they are kept: copy.deepcopy(model.state_dict()), or save them to a file.",
        watch="A copy takes the memory of the weights.",
        subject=kept.held_by or kept.module or "state_dict",
    )
