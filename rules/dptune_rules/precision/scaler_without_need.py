"""Losses are scaled against underflow in fp16, where nothing is computed in fp16.

## What it measures

Whether a GradScaler is enabled while autocast computes in bf16, or not at all.

## Why it matters

A GradScaler multiplies the loss, so that small gradients do not vanish in fp16. bf16 has the range of fp32, so nothing
vanishes. The cost remains in each step: every gradient is divided again and checked for infinities, and the process
waits for the result from the device. A step with an infinity is skipped.

## What to change

Remove it, or use `GradScaler(enabled=False)`; call `loss.backward()` and `optimizer.step()` directly.

Where there is no autocast, autocast may be what is missing: on a GPU whose tensor cores compute in fp16 only (see
`tensor-cores-unused`), run the forward pass and the loss under fp16 autocast, and keep the scaler.

## When to leave it alone

- One script for both: enable it by the type, `GradScaler(enabled=dtype is torch.float16)`.

## References

- PyTorch, "Automatic Mixed Precision package", on gradient scaling: https://pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView
from dptune_rules.known import known

RULE = Rule(
    code="DP403",
    name="scaler-without-need",
    family="precision",
    kind="risk",
    summary="a GradScaler is used although nothing computes in fp16",
    since="0.1",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name a GradScaler that is enabled where autocast is not fp16."""
    if not run.any_facts("grad_scaler").grad_scaler:
        return
    facts = run.any_facts("grad_scaler", "autocast", "fsdp")
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
        title=f"A GradScaler is enabled, and {said}",
        why="It checks all gradients in each step and skips steps with an overflow; only fp16 needs that.",
        changes=[],
        confidence="high",
        evidence=[
            Evidence(label="autocast", value=facts.autocast or "none"),
            *([] if facts.grad_scale is None else [Evidence(label="scale", value=facts.grad_scale)]),
            *known("steps that were skipped", skipped),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )
