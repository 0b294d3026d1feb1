"""Losses are scaled although nothing computes in fp16, or not scaled although autocast does.

## What it measures

Whether `clip_grad_norm_` or `clip_grad_value_` clips gradients of an optimizer before its GradScaler unscales them.
Whether a GradScaler is enabled while autocast computes in bf16, or not at all; and whether none is enabled while
gradients are computed in fp16. The autograd graphs of the first backward passes show whether they hold fp16 values; an
fp16 model that is not trained does not appear in them. They also show a constant by which the script multiplies the
loss: a factor of 8 or more counts as loss scaling by the script (8 was enough for one network of the paper below). So
does a median loss of 128 or more at the start of the passes: cross-entropy of 50,000 classes starts near 11. Code in
compiled graphs or in custom autograd functions is not visible.

## Why it matters

A GradScaler multiplies the loss, so that small gradients do not vanish in fp16. Without it, gradients of activations
below 2^-25 (3e-8) round to zero, and those below 2^-14 (6e-5) lose digits: layers far from the loss train less, or not
at all, and nothing warns.

Where nothing computes in fp16, the scaler only costs time: bf16 has the range of fp32, so nothing vanishes. In each
step every gradient is divided again and checked for infinities, and the process waits for the result from the device.
A step with an infinity is skipped.

## What to change

In fp16, scale the loss, and unscale gradients before they are clipped:

    scaler = torch.amp.GradScaler(device_type)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # only before clipping
    scaler.step(optimizer)
    scaler.update()

or use bf16 autocast, which needs no scaler.

Without fp16, remove the scaler, or use `GradScaler(enabled=False)`; call `loss.backward()` and `optimizer.step()`
directly.

A scaler without autocast can mean that autocast was forgotten: on a GPU whose tensor cores compute in fp16 only (see
`tensor-cores-unused`), run the forward pass and the loss under fp16 autocast, and keep the scaler.

## When to leave it alone

- One script for fp16 and bf16: `GradScaler(enabled=dtype is torch.float16)`.
- The script scales its loss in a way that the graph does not show, for example inside a compiled function.

## References

- Micikevicius et al., "Mixed Precision Training" (2018), section 3.2, a network that diverges without loss scaling, and
  one for which a factor of 8 is enough: https://arxiv.org/abs/1710.03740
- PyTorch, "Automatic Mixed Precision package", on gradient scaling: https://pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

SCALED_LOSS = Threshold(
    "scaled_loss",
    128.0,
    "losses from here are taken as scaled by the script: cross-entropy of 50,000 classes starts near 11",
)

FACTOR = Threshold(
    "factor", 8.0, "the script scales its loss from here: enough for a network of Micikevicius et al., section 3.2"
)

RULE = Rule(
    code="DP403",
    name="loss-scaling",
    family="precision",
    kind="risk",
    summary="a GradScaler is used although nothing computes in fp16, fp16 autocast trains without one, or gradients "
    "are clipped before they are unscaled",
    since="0.1",
    thresholds=(SCALED_LOSS, FACTOR),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name a GradScaler that is enabled where autocast is not fp16, or fp16 autocast that trains without one."""
    if not run.any_facts("grad_scaler").grad_scaler:
        yield from _unscaled(run)
        return
    facts = run.any_facts("grad_scaler", "autocast", "fsdp")
    yield from _clipped(run)
    kind = (facts.autocast or "").rpartition(":")[2]
    half = kind == "float16" or any("float16" in ddp.gradient_dtypes for ddp in facts.ddp)
    if not facts.grad_scaler or half or facts.fsdp or facts.engine:
        return
    said = "autocast uses bf16, which does not underflow like fp16: remove it"
    if not kind:
        said = "there is no autocast: remove it, or use fp16 autocast"
    skipped = sum(window.skipped_steps or 0 for window in facts.windows)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium" if skipped else "low",
        title=f"A GradScaler is enabled{in_parentheses(facts.grad_scaler_where)}, and {said}",
        why="It checks all gradients in each step and skips steps with an overflow; only fp16 needs that.",
        changes=[],
        remedy="Remove the scaler." if kind else "Remove the scaler, or use fp16 autocast.",
        confidence="high",
        evidence=[
            Evidence(label="autocast", value=facts.autocast or "none"),
            *([] if facts.grad_scale is None else [Evidence(label="scale", value=facts.grad_scale)]),
            *known("steps that were skipped", skipped),
            *known("scaler created at", facts.grad_scaler_where),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _clipped(run: RunView) -> Iterator[Advice]:
    """A line that clips gradients while they are multiplied by the scale."""
    facts = next((facts for facts in run.facts if facts.scaled_clipping), None)
    if facts is None or facts.scaled_clipping is None or (facts.grad_scale or 0.0) <= 1:
        return
    where = facts.scaled_clipping.where
    yield results_at_risk(
        RULE,
        title=f"Gradients are clipped at {where} before the GradScaler unscales them: the limit is compared with "
        f"gradients {facts.grad_scale:,.0f} times as large",
        why="The clipped gradients are then divided by the scale: with SGD, updates become tiny.",
        evidence=[
            Evidence(label="scale", value=facts.grad_scale or 0.0),
            Evidence(label=f"clipped at {where} before unscale_", value=facts.scaled_clipping.times, unit="times"),
            *known("scaler created at", facts.grad_scaler_where),
        ],
        remedy=f"Call `scaler.unscale_(optimizer)` before {where}.",
        watch="max_norm then applies to the true gradients: compare the loss.",
        subject="clipped",
    )


def _unscaled(run: RunView) -> Iterator[Advice]:
    """Of recordings: a trace alone shows neither the losses nor whether a scaler is enabled for certain."""
    if not run.facts:
        return
    facts = run.any_facts()
    fp16 = (facts.autocast or "").endswith(":float16")
    if not fp16 or facts.grad_scaler is not False or facts.engine or not facts.optimizers:
        return
    losses, scaling = [abs(loss) for loss in facts.losses if math.isfinite(loss)], facts.loss_scaling
    if not losses or median(losses) >= run.limit(SCALED_LOSS):
        return
    if scaling is None or not scaling.half_passes or scaling.factor >= run.limit(FACTOR):
        return
    yield results_at_risk(
        RULE,
        title=f"Training computes in fp16 autocast{in_parentheses(facts.autocast_where)} without an enabled "
        "GradScaler: small gradients round to zero",
        why="fp16 rounds gradients below 2^-25 to zero; a GradScaler multiplies the loss to keep them above that.",
        evidence=[
            Evidence(label="autocast", value=facts.autocast or ""),
            Evidence(label="enabled GradScaler", value="none"),
            Evidence(
                label="backward passes with values in fp16", value=scaling.half_passes, unit=f"of {scaling.passes}"
            ),
            Evidence(label="loss", value=median(losses), unit="median"),
            *known("autocast entered at", facts.autocast_where),
            *known("GradScaler, not enabled, created at", facts.grad_scaler_where),
            *known("backward pass at", facts.backward_where),
        ],
        remedy="Enable torch.amp.GradScaler for the loss, the optimizer step and clipping, or use bf16 autocast. Leave "
        "it where the script scales its loss inside a compiled function, which the recording does not show.",
        subject="unscaled",
        confidence="medium",
    )
