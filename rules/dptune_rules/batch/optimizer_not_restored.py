"""An optimizer starts without its state: not restored from a checkpoint, or created in each step.

## What it measures

Checkpoints that the script loads with `torch.load` itself, and the first step of each optimizer. Reported if

- the checkpoint has weights and the state of an optimizer (the moments of Adam, the momentum of SGD);
- the function that loads it keeps its epoch or step, so training continues from there;
- all parameters of the optimizer start with the checkpoint's weights, and the state in it has their shapes;
- the optimizer has no state at its first step.

Also lines that create an optimizer with a state for every step or two, for the same parameters: at least three
in the warm-up steps.

## Why it matters

Adam divides its first moment by the root of the second. Without them the first steps after each restart are as large
as the learning rate allows, whatever the gradients, and the loss rises. SGD lacks its momentum. Each restart loses
progress.

## What to change

    optimizer.load_state_dict(checkpoint["optimizer"])

Restore the learning-rate schedule in the same way, after the optimizer.

Create the optimizer once, before the loop. To change its learning rate, use a scheduler or set
`optimizer.param_groups[0]["lr"]`.

## When to leave it alone

- The weights are trained further on other data or for another task: a new state is then right, and so is a new
  schedule.
- The state is dropped in each step on purpose: then SGD without momentum does nearly the same.
- The learning rate is warmed up again after each restart.

## References

- PyTorch, "Saving & Loading a General Checkpoint for Inference and/or Resuming Training":
  https://pytorch.org/tutorials/beginner/saving_loading_models.html
- Fine-tuning that replaces a layer of the checkpoint, or does not read its epoch, gave no finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, UnrestoredStateFacts
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP312",
    name="optimizer-not-restored",
    family="batch",
    kind="risk",
    summary="an optimizer starts without its state: not restored from a checkpoint, or created in each step",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each such optimizer of the first rank that has one."""
    if run.recorded_about("unrestored_states") is None:
        return
    for facts in [facts for facts in run.facts if facts.unrestored_states][:1]:
        yield from map(_advice, facts.unrestored_states)


def _of_renewed(found: UnrestoredStateFacts) -> Advice:
    return results_at_risk(
        RULE,
        title=f"{found.optimizer} is created again for each step{in_parentheses(found.where)}: its state is lost",
        why="A new optimizer starts without moments or momentum. Adam without them steps by the learning rate in each "
        "parameter, whatever the size of the gradient.",
        evidence=[
            Evidence(label="optimizers created for the same parameters", value=found.renewed),
            *known("created at", found.where),
            Evidence(label="parameter tensors", value=found.parameters),
        ],
        remedy="Create it once, before the loop; change the learning rate with a scheduler or in `param_groups`.",
        watch="Steps have another size then: check the learning rate.",
        subject=f"{found.optimizer}:renewed",
        confidence="high",
    )


def _advice(found: UnrestoredStateFacts) -> Advice:
    if found.renewed:
        return _of_renewed(found)
    return results_at_risk(
        RULE,
        title=f"{found.optimizer}{in_parentheses(found.where)} starts without its state, which the checkpoint loaded "
        f"at {found.loaded_at} has under `{found.key}`",
        why=f"The script continues at the checkpoint's `{found.progress}` with its weights. Without the state the "
        "first steps are too large or lack their momentum, and the loss rises after each restart.",
        evidence=[
            Evidence(label="parameters that start with the checkpoint's weights", value=found.parameters),
            *known("checkpoint loaded at", found.loaded_at),
        ],
        remedy=f'Call optimizer.load_state_dict(checkpoint["{found.key}"]), and restore the learning-rate schedule in '
        "the same way.",
        watch="A new state is right for training on other data.",
        subject=found.optimizer,
        confidence="medium",
    )
