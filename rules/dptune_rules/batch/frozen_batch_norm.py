"""BatchNorm layers of a frozen part of the model run in training mode.

## What it measures

BatchNorm layers with running statistics that ran in training mode in the warm-up steps although none of their
parameters had `requires_grad`. Not counted: a model that is frozen as a whole and runs without gradients (a teacher),
a layer that is trained in some of the steps, and one whose weights change anyway (a moving average of another part).

## Why it matters

It costs no time. `requires_grad = False` freezes weights, not statistics: in training mode a layer normalizes with the
mean and variance of the batch, and adds them to its running statistics. So the frozen weights no longer see the inputs
that they were trained on, the features vary with the batch, and evaluation uses the overwritten statistics.

## What to change

Modules are created in training mode, and `model.train()` puts them back into it. Call `.eval()` on the frozen part
before training and after each `model.train()`:

    model.train()
    model.backbone.eval()

Do not call it on the whole model: that would disable dropout in the trained part. Where a library calls `train()`,
override it in the module: `super().train(mode)`, then `self.backbone.eval()`. This also saves the time that the
statistics take.

## When to leave it alone

- You want the statistics to adapt to the new data while the weights stay fixed.

## References

- PyTorch, `torch.nn.BatchNorm2d`, on `track_running_stats` and evaluation mode:
  https://pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
- Keras, "Transfer learning & fine-tuning", "Important note about BatchNormalization layers":
  https://keras.io/guides/transfer_learning/
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView
from dptune_rules.known import known

RULE = Rule(
    code="DP302",
    name="frozen-batch-norm",
    family="batch",
    kind="risk",
    summary="frozen BatchNorm layers run in training mode and overwrite their statistics",
    since="0.1",
    needs="recording",
)


# The end of the reason where no call of train() was seen.
NEVER_CALLED = " Modules are created in training mode, and the script has not called `train()` yet."


def check(run: RunView) -> Iterator[Advice]:
    """Name the frozen part, and the line after which it needs `.eval()`."""
    if run.recorded_about("frozen_norms") is None:
        return
    found = next((facts.frozen_norms for facts in run.facts if facts.frozen_norms is not None), None)
    if found is None:
        return
    many = f"{found.layers} frozen BatchNorm layers run" if found.layers > 1 else "A frozen BatchNorm layer runs"
    parts = ", ".join(f"`{part}`" for part in found.parts)
    where = found.train_where or found.runs_at
    evals = " and ".join(f"`{part}.eval()`" for part in found.parts)
    when = "after each `model.train()`" if found.train_where else "before training, and after each `model.train()`"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium",
        title=f"{many} in training mode in {parts}{f' ({where})' if where else ''}: call {evals} {when}",
        why="In training mode, BatchNorm normalizes with batch statistics and overwrites its running statistics, "
        "although its weights are frozen." + ("" if found.train_where else NEVER_CALLED),
        changes=[],
        remedy=f"Call {evals} {when}.",
        confidence="medium",
        evidence=[
            Evidence(label="frozen BatchNorm layers in training mode", value=found.layers),
            Evidence(label="for example", value=", ".join(found.names)),
            *known("last call of train()", found.train_where),
            *known("run at", found.runs_at),
        ],
        numerics="changes",
        watch="Do not call `.eval()` on the whole model: that disables dropout in the trained part.",
        fingerprint=f"{RULE.code}:{found.parts[0]}",
    )
