"""Matrix products run in fp32 on a GPU whose tensor cores compute in fp16 only, and are left idle.

## What it measures

The time of matrix product and convolution kernels that compute in fp32, as a share of the step, on an NVIDIA GPU of
compute capability 7.x (Volta, Turing), whose tensor cores support neither TF32 nor bf16. Also the share of the step
that runs on tensor cores. The untraced step is used where it was recorded, because tracing slows the host and not the
kernels.

Where a trace does not name the GPU, names of kernels show its architecture. Confidence is then low: GTX 16 cards run
the same kernels and have no tensor cores.

## Why it matters

The peak of a V100 is 125 TFLOP/s on tensor cores and 15.7 in fp32. Memory-bound kernels read and write half of the
bytes in fp16, too.

## What to change

Use fp16 autocast around the forward pass and the loss, with a GradScaler around backward and the optimizer's step:
`torch.autocast("cuda", dtype=torch.float16)` and `torch.amp.GradScaler("cuda")`. These tensor cores do not support
bf16.

The saving is predicted by replaying the recorded steps; otherwise it is an upper bound: all of those products and half
of the remaining compute. If the step waits for its data loader, faster compute mostly becomes waiting, and the replay
limits the bound.

## When to leave it alone

- Models that are known to overflow in fp16; on Ampere and later use bf16, which does not overflow there.
- Products that are small, or whose sizes are not multiples of 8: they speed up little.

## References

- NVIDIA Tesla V100 architecture whitepaper:
  https://images.nvidia.com/content/volta-architecture/pdf/volta-architecture-whitepaper.pdf
- Micikevicius et al. 2018, "Mixed Precision Training": https://arxiv.org/abs/1710.03740
- Calibrated on public traces: findings for ResNet-50 on a V100 (29 % of a step in such products) and for recommenders
  on four of them (30 %); where the products take 6 % of a step that waits for other ranks, the impact is medium.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from dptune.advice import Advice, Change, Evidence, Saving
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

_VOLTA_OR_TURING = re.compile(r"\b(V100S?|T4G?|TITAN (V|RTX)|RTX 20\d\d|Quadro (GV100|RTX [3-8]000))\b", re.IGNORECASE)

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: less is often one layer kept in fp32 on purpose")
USED_SHARE = Threshold("used_share", 0.05, "if tensor cores already compute that much of a step, autocast is on")
# Kernels compiled for these run on later GPUs as well, which also have kernels of their own.
FP16_ONLY = ("Volta or later", "Turing or later")
FIRMLY = "tensor cores idle: use fp16 autocast"
UNNAMED = (
    "The trace does not name the GPU: GTX 16 cards have no tensor cores, and on Ampere or later use bf16 instead. "
)

RULE = Rule(
    code="DP404",
    name="tensor-cores-unused",
    family="precision",
    kind="time",
    summary="fp32 matrix products leave fp16-only tensor cores idle",
    since="0.1",
    thresholds=(WORTH_SHARE, USED_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose fp16 autocast where fp32 products take a share of the step worth it and tensor cores are idle."""
    unnamed = run.measured.matmul.architecture in FP16_ONLY
    if run.measured.device_kind != "cuda" or not (unnamed or run.measured.matmul.tensor_cores):
        return
    share = run.unstretched(run.measured.matmul.fp32_share)
    used = run.unstretched(run.measured.matmul.known("tensor_core_share") or 0.0)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None or used >= run.limit(USED_SHARE):
        return
    if not unnamed and not run.gpus_have(_has_fp16_only, "tensor cores for fp16 only"):
        return
    computed = max(share, run.unstretched(run.measured.share("compute_ns")))
    facts = run.facts[0] if run.facts else None
    now = "bf16" if facts and (facts.autocast or "").endswith("bfloat16") else "off"
    changes = [Change(knob="precision.autocast", now=now, then="fp16")]
    scaler = "keep the existing GradScaler" if facts and facts.grad_scaler else "use a GradScaler"
    how = "all fp32 matrix products and convolutions, and half of the other compute"
    saves = _limited(run, changes, run.saving(changes, run.bound(0.0, (share + computed) / 2, how)))
    if saves.basis == "bound":
        impact = run.impact(min(share, saves.high_share), WORTH_SHARE)
        if impact is None:
            return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"fp32 convolutions and matrix products take {100 * share:.0f} % of a step, and "
        + ("no kernel uses tensor cores: if this GPU has any, use fp16 autocast" if unnamed else FIRMLY),
        why=f"Tensor cores of {'Volta and Turing GPUs' if unnamed else 'this GPU'} compute in fp16 only, at eight "
        "times the peak of fp32.",
        changes=changes,
        saves=saves,
        confidence="low" if unnamed else "medium",
        evidence=[
            Evidence(label="fp32 matrix products and convolutions", value=share, unit="of a step").at(
                run.measured.where("fp32 matmul")
            ),
            Evidence(label="compute", value=computed, unit="of a step").at(run.measured.where("compute_ns")),
            Evidence(label="tensor-core kernels", value=used, unit="of a step"),
            *([Evidence(label="GPU, by its kernels", value=run.measured.matmul.architecture)] if unnamed else []),
        ],
        numerics="changes",
        watch=(UNNAMED if unnamed else "")
        + f"fp16 overflows beyond 65,504: {scaler}, and compare the loss over the first few hundred steps.",
        fingerprint=f"{RULE.code}:precision.autocast",
    )


def _limited(run: RunView, changes: list[Change], saves: Saving) -> Saving:
    """The bound, no larger than that of a replay which predicts nothing, and why it does not."""
    with suppress(Missing):
        ceiling = run.ceiling(changes)
        if saves.basis == "bound" and ceiling.unpredicted:
            how = f"{saves.how}, at most what shorter compute saves; {ceiling.unpredicted.partition(':')[0]}"
            most = min(saves.high_share, ceiling.high_share)
            return run.bound(0.0, most, how).without_prediction(ceiling.unpredicted)
    return saves


def _has_fp16_only(capability: str, name: str) -> bool:
    """By compute capability where it was recorded, else by the name of the card."""
    return capability.startswith("7.") if capability else bool(_VOLTA_OR_TURING.search(name))
