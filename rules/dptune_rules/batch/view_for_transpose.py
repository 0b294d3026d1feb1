"""A view or reshape stands where a transpose is meant: dimensions change places, the values do not.

## What it measures

In three warm-up steps, each call of `view`, `reshape`, `view_as` and `reshape_as` on a line of the script. A call is
reported if it moves a dimension: its size is in the shapes before and after, at other places, and the sizes between are
the same, split or merged. Examples: (B, T, C) to (B, C, T), the split into heads (B, T, H*D) to (B, H, T, D), and
(B, C, H, W) to (B, H*W, C). The shape before is that of the last operator that was not a view. In at least two steps,
an operator (a convolution, a matrix product, a softmax) must compute along the moved dimensions, and gradients
must flow through its result.

Shapes can also match by chance where neighbors are regrouped on purpose (several frames stacked into one, groups of
channels). Regrouping only splits and merges neighboring dimensions. Views that could do so have medium confidence, or
are skipped if regrouping is likely. Also skipped: weights, batches whose first dimension moves, views that a later view
undoes, padded matrices of relative positions, equal sizes (a square stays a square), dimensions of size 1, code of
installed packages, and data loaders with workers.

## Why it matters

`view` and `reshape` keep the order of the values in memory and only change how they are cut. From (batch, time,
channels) to (batch, channels, time), a row that is taken for one channel has values of all channels at a few times. No
error is raised, and training converges, but to a worse result: the model has to undo a fixed permutation, and
convolutions, attention and masks along that dimension see unrelated values.

## What to change

    x = x.transpose(1, 2)                                  # (B, T, C) to (B, C, T)
    q = q.view(B, T, H, D).transpose(1, 2)                 # (B, T, H*D) to (B, H, T, D)
    y = y.transpose(1, 2).reshape(B, T, H * D)             # and back
    x = x.flatten(2).transpose(1, 2)                       # (B, C, H, W) to (B, H*W, C)

Trained checkpoints have adapted to the wrong order: train again after the change.

## When to leave it alone

- The values are in the new order already, because they were written to a tensor of another shape.
- Neighbors are regrouped on purpose, and the sizes match by chance.

## References

- PyTorch, `torch.Tensor.view`: https://pytorch.org/docs/stable/generated/torch.Tensor.view.html
- PyTorch, `torch.transpose`: https://pytorch.org/docs/stable/generated/torch.transpose.html
- Informer, issue 59, on an output of attention that is viewed without a transpose:
  https://github.com/zhouhaoyi/Informer2020/issues/59
- Two steps, so that a single batch of unusual sizes does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import MisplacedViewFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk

RULE = Rule(
    code="DP316",
    name="view-for-transpose",
    family="batch",
    kind="risk",
    summary="a view or reshape stands where a transpose is meant",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)
LEAST_STEPS = 2


def check(run: RunView) -> Iterator[Advice]:
    """Name each such line of the first rank that has one."""
    if run.recorded_about("misplaced_views") is None:
        return
    for found in next((facts.misplaced_views for facts in run.facts if facts.misplaced_views), []):
        if LEAST_STEPS <= found.steps <= found.steps_seen and found.instead and _agree(found):
            yield _advice(found)


def _agree(found: MisplacedViewFacts) -> bool:
    """Whether a view can make one shape of the other."""
    return found.given != found.made and math.prod(found.given) == math.prod(found.made)


def _advice(found: MisplacedViewFacts) -> Advice:
    at = f"`{found.function}` ({found.where})" if found.function else found.where
    given, made = (f"({', '.join(map(str, shape))})" for shape in (found.given, found.made))
    return results_at_risk(
        RULE,
        title=f"{at} changes the shape {given} to {made} by `{found.operator}`: dimensions change places, the values "
        "do not",
        why=f"`{found.operator}` keeps the order of the values in memory. Operators along these dimensions compute on "
        "values that do not belong together.",
        confidence="high" if found.certain else "medium",
        evidence=[
            Evidence(label="steps that compute with the result", value=found.steps, unit=f"of {found.steps_seen}"),
            Evidence(label="shape before", value=given),
            Evidence(label="shape after", value=made),
            Evidence(label="changed at", value=found.where),
        ],
        remedy=f"Move the dimensions: `x{found.instead}` in place of the `{found.operator}`.",
        watch="Weights trained with the wrong order do not fit the right one: train again.",
        subject=found.function or found.where.rpartition(":")[0],
    )
