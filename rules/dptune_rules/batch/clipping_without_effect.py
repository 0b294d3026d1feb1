"""Gradient clipping has no effect, or FSDP1 ranks clip by different norms.

## What it measures

In warm-up steps, for each line that calls `clip_grad_norm_` or `clip_grad_value_`: whether a backward pass changes the
clipped gradients between the call and the optimizer step. Reported if this happens in every step, and at least three
times. Calls with a limit of 1e9 or more, which only measure the norm, steps with a closure, and steps inside a backward
pass are left out.

Also reported: `torch.nn.utils.clip_grad_norm_` on parameters that are sharded by FullyShardedDataParallel (FSDP1).

## Why it matters

Clipping changes the gradients that exist when it is called. Called before the backward pass, or after the step, it
clips nothing that the optimizer uses: one batch with a large gradient can ruin the weights, and changing `max_norm` has
no effect. With FSDP1, each rank holds a shard of each gradient, so ranks compute different norms and scale their shards
by different factors.

## What to change

Clip between the backward pass and the step:

    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()

With FSDP1, call the wrapped model's own method: `model.clip_grad_norm_(1.0)`.

## When to leave it alone

- Only the returned norm is used, for logging. Then pass `float("inf")` as the limit.

## References

- torch.nn.utils.clip_grad_norm_: "Gradients are modified in-place":
  https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_: https://pytorch.org/docs/stable/fsdp.html
- Three steps: one or two may be the start of a longer pattern, for example of gradient accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import ClippingFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

LEAST_STEPS = 3

RULE = Rule(
    code="DP307",
    name="clipping-without-effect",
    family="batch",
    kind="risk",
    summary="gradient clipping has no effect, or FSDP1 ranks clip by different norms",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the lines that clip gradients no step uses, or shards by the norm of one rank."""
    if run.recorded_about("clipping") is None:
        return
    lines = next((facts.clipping for facts in run.facts if facts.clipping), [])
    clipped = {found.optimizer for found in lines if found.changed < found.steps}
    for found in lines:
        if found.steps >= LEAST_STEPS and found.changed == found.steps and found.optimizer not in clipped:
            yield _unused(found)
        elif found.calls >= LEAST_STEPS and found.local == found.calls:
            yield _local(found)


def _unused(found: ClippingFacts) -> Advice:
    return results_at_risk(
        RULE,
        title=f"Gradients clipped at {found.where} are never used: a backward pass changes them before each "
        f"{found.optimizer} step",
        why="Clipping changes the gradients that exist when it is called. Called after the step or before the backward "
        "pass, it does not limit any update.",
        evidence=[
            Evidence(label="steps with unclipped gradients", value=found.changed, unit=f"of {found.steps}"),
            Evidence(label="clipping calls in warm-up steps", value=found.calls),
            *known("optimizer steps at", found.step_where),
        ],
        remedy=f"Move the call at {found.where} between the backward pass and the optimizer step.",
        watch="Updates become smaller where gradients are large: compare the loss.",
        subject="unused",
    )


def _local(found: ClippingFacts) -> Advice:
    return results_at_risk(
        RULE,
        title=f"{found.where} clips the shards of FullyShardedDataParallel by the norm of one rank: ranks scale their "
        "shards by different factors",
        why="torch.nn.utils.clip_grad_norm_ sees only the gradient shards of its own rank.",
        evidence=[Evidence(label="calls on sharded parameters in warm-up steps", value=found.local)],
        remedy=f"At {found.where}, call `clip_grad_norm_` of the wrapped model: it computes the norm over all ranks.",
        watch="The norm becomes larger: check max_norm.",
        subject="local",
    )
