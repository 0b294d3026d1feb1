"""Matrix products run in full fp32 on a GPU whose tensor cores could compute them in TF32.

## What it measures

The time of matrix product and convolution kernels that compute in fp32, as a share of the step, on an NVIDIA GPU that
supports TF32: compute capability 8.0 (Ampere) or later. The untraced step is used where it was recorded, because
tracing slows the host and not the kernels.

## Why it matters

fp32 products do not run on the tensor cores. On an A100 the peak of TF32 is 8 times that of fp32 (156 and 19.5
TFLOP/s). Other cards differ, and small or badly shaped products speed up less. The saving is predicted by replaying the
recorded steps with shorter products; without a replay it is an upper bound: the time of those kernels.

## What to change

`torch.set_float32_matmul_precision("high")` at the start of the script. Inputs stay fp32; products are computed with 10
bits of mantissa and summed in fp32. For convolutions the switch is `torch.backends.cudnn.allow_tf32`, which is on
unless the script switched it off.

bf16 autocast (`with torch.autocast("cuda", dtype=torch.bfloat16):` around the forward pass) goes further: twice the
peak of TF32, and half the bytes of activations. It changes more of the arithmetic.

## When to leave it alone

- Solvers, physics, metric learning with tiny distances: whatever needs more than three decimal digits in a product.
- A run that must reproduce an earlier one bit for bit.
- Cards before Ampere (V100, T4): they have no TF32. There fp16 autocast with a GradScaler uses the tensor cores.

## References

- NVIDIA A100 datasheet: FP32 19.5 TFLOP/s, TF32 156 TFLOP/s dense:
  https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
- torch.set_float32_matmul_precision: https://pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
- PyTorch, "TensorFloat-32 (TF32) on Ampere (and later) devices": https://pytorch.org/docs/stable/notes/cuda.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: less is often one layer kept in fp32 on purpose")
TF32_CAPABILITY = 8  # the major compute capability of Ampere
_BEFORE_AMPERE = re.compile(r"\b(V100S?|T4G?|TITAN|RTX 20\d\d|Quadro|GTX|P100|P40|P4|K80|M40|M60)\b", re.IGNORECASE)

RULE = Rule(
    code="DP401",
    name="fp32-matmul",
    family="precision",
    kind="time",
    summary="matrix products run in full fp32 on a GPU whose tensor cores could compute them in TF32",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose TF32 where fp32 products take a share of the step worth it and the GPU knows TF32."""
    if run.measured.device_kind != "cuda" or not run.measured.matmul.tensor_cores:
        return
    share = run.unstretched(run.measured.matmul.fp32_share)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None or not _knows_tf32(run):
        return
    now = run.facts[0].settings.get("float32_matmul_precision") if run.facts else None
    if now in ("high", "medium"):
        return
    devices = sorted({str(rank.known("device_name") or "") for rank in run.measured.ranks} - {""})
    changes = [Change(knob="precision.float32_matmul", now=now, then="high")]
    bound = run.bound(0.0, share, "the time of the fp32 matrix product and convolution kernels")
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{100 * share:.0f} % of a step is fp32 matrix products that tensor cores could run in TF32",
        why="fp32 products leave tensor cores idle. TF32 uses them, and bf16 autocast saves more.",
        changes=changes,
        saves=run.saving(changes, bound),
        confidence="medium",
        evidence=[
            Evidence(label="fp32 matrix products and convolutions", value=share, unit="of a step").at(
                run.measured.where("fp32 matmul")
            ),
            *_tensor_core_time(run),
            *(Evidence(label="device", value=name) for name in devices),
        ],
        numerics="changes",
        watch="TF32 keeps 10 bits of mantissa where fp32 keeps 23: compare the loss over the first few hundred steps.",
        fingerprint=f"{RULE.code}:precision.float32_matmul",
    )


def _knows_tf32(run: RunView) -> bool:
    """By compute capability where it was recorded, else by the name of the card."""
    capability, name = run.gpu()
    if capability:
        return int(capability.partition(".")[0]) >= TF32_CAPABILITY
    return not _BEFORE_AMPERE.search(name)


def _tensor_core_time(run: RunView) -> Iterator[Evidence]:
    used = run.measured.matmul.known("tensor_core_share")
    if used is not None:
        yield Evidence(label="tensor-core kernels", value=run.unstretched(used), unit="of a step")
