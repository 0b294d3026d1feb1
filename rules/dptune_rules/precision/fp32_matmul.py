"""Matrix products run in full fp32 on a GPU whose tensor cores could compute them in TF32.

## What it measures

The time of matrix product and convolution kernels that compute in fp32, as a share of the step, on an NVIDIA GPU that
supports TF32: compute capability 8.0 (Ampere) or later. The untraced step is used where it was recorded, because
tracing slows the host and not the kernels.

## Why it matters

fp32 products do not run on the tensor cores. On an A100 the peak of TF32 is 8 times that of fp32 (156 and 19.5
TFLOP/s). Other cards differ, and small or badly shaped products speed up less. The saving is predicted by replaying the
recorded steps with shorter products; without a replay it is an upper bound: the time of those kernels, less what their
FLOPs take at the peak of TF32.

## What to change

`torch.set_float32_matmul_precision("high")` at the start of the script. Inputs stay fp32; products are computed with 10
bits of mantissa and summed in fp32. For convolutions the switch is `torch.backends.cudnn.allow_tf32`, which is on
unless the script switched it off: it is proposed where the recording shows it off. Otherwise cuDNN has chosen the fp32
kernels of convolutions (depthwise, few channels), and they do not count; a trace alone does not show the switch.

On GeForce cards (RTX 3060, 3090, 4090) the peak of TF32 is that of fp32, and bf16 autocast is proposed.

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

from dptune.advice import Advice, Change, Confidence, Evidence, Impact
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: less is often one layer kept in fp32 on purpose")
TF32_CAPABILITY = 8  # the major compute capability of Ampere
_BEFORE_AMPERE = re.compile(r"\b(V100S?|T4G?|TITAN|RTX 20\d\d|Quadro|GTX|P100|P40|P4|K80|M40|M60)\b", re.IGNORECASE)

_AMPERE_OR_LATER = re.compile(
    r"\b(A(2|10[GM]?|16|30X?|40|100X?|800)|L(2|4|20|40S?)|H(20|[128]00)|GH200|G?B[123]00"
    r"|RTX ([345]0\d\d|A\d{4}|.*Ada))\b",
    re.IGNORECASE,
)

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
    if impact is None or not run.gpus_have(_knows_tf32, "TF32"):
        return
    now = run.facts[0].settings.get("float32_matmul_precision") if run.facts else None
    if now in ("high", "medium"):
        return
    peaks = run.measured.matmul.peaks
    if "bf16" in peaks and peaks.get("tf32", 0.0) <= peaks.get("fp32", 0.0):
        yield from _autocast(run, share, impact)
        return
    convolutions, allowed = _convolutions(run)
    if convolutions and allowed:  # FLOPs of products alone are not known
        kernels, share, fastest = "matrix products", share - convolutions, 0.0
    else:
        kernels, fastest = "convolutions and matrix products", _fastest(run, "tf32")
    share_saved = max(0.0, share - fastest)
    impact = run.impact(share_saved, WORTH_SHARE)
    if impact is None:
        return
    changes = [Change(knob="precision.float32_matmul", now=now, then="high")] if share > convolutions or allowed else []
    if convolutions and not allowed:
        changes.append(Change(knob="cudnn.allow_tf32", now=False, then=True))
    how = f"the time of the fp32 {kernels}"
    bound = run.bound(0.0, share_saved, f"{how}, less what their FLOPs take at the peak of TF32" if fastest else how)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"fp32 {kernels} take {100 * share:.0f} % of a step: tensor cores could run them in TF32",
        why="fp32 products leave tensor cores idle. TF32 uses them, and bf16 autocast saves more.",
        changes=changes,
        saves=run.saving(changes, bound),
        confidence=_confidence(run),
        evidence=list(_evidence(run, share, kernels)),
        numerics="changes",
        watch="TF32 keeps 10 bits of mantissa where fp32 keeps 23: compare the loss over the first few hundred steps.",
        fingerprint=f"{RULE.code}:precision.float32_matmul",
    )


def _convolutions(run: RunView) -> tuple[float, bool]:
    """The share of a step that is fp32 convolutions, and whether they may use TF32: torch's default if unknown."""
    share = run.unstretched(run.measured.matmul.known("fp32_convolution_share") or 0.0)
    allowed = run.facts[0].settings.get("backends.cudnn.allow_tf32", True) if run.facts else True
    return share, bool(allowed)


def _knows_tf32(capability: str, name: str) -> bool:
    """By compute capability where it was recorded, else by the name of the card."""
    if capability:
        return int(capability.partition(".")[0]) >= TF32_CAPABILITY
    return not _BEFORE_AMPERE.search(name)


def _confidence(run: RunView) -> Confidence:
    """Low where a GPU's capability is unknown and its name is of no known GPU with TF32."""
    known = all(capability or _AMPERE_OR_LATER.search(name) for capability, name in run.gpus().values())
    return "medium" if known else "low"


def _autocast(run: RunView, share: float, impact: Impact) -> Iterator[Advice]:
    """Propose bf16 where TF32 is no faster than fp32."""
    facts = run.facts[0] if run.facts else None
    if facts and facts.autocast:
        return
    peaks, fastest = run.measured.matmul.peaks, _fastest(run, "bf16")
    computed = max(share, run.unstretched(run.measured.share("compute_ns")))
    changes = [Change(knob="precision.autocast", now="off" if facts else None, then="bf16")]
    how = "all fp32 matrix products and convolutions, and half of the other compute"
    how += ", less what the FLOPs of the products take at the peak of bf16" if fastest else ""
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"fp32 convolutions and matrix products take {100 * share:.0f} % of a step, and TF32 has no higher peak: "
        "use bf16 autocast",
        why=f"The peak of this GPU is {peaks['fp32'] / 1e12:.4g} TFLOP/s in fp32, {peaks['tf32'] / 1e12:.4g} in TF32 "
        f"and {peaks['bf16'] / 1e12:.4g} in bf16. Attention also runs in bf16 then.",
        changes=changes,
        saves=run.saving(changes, run.bound(0.0, max(0.0, (share + computed) / 2 - fastest), how)),
        confidence=_confidence(run),
        evidence=list(_evidence(run, share, "convolutions and matrix products")),
        numerics="changes",
        watch="bf16 keeps 7 bits of mantissa where fp32 keeps 23: compare the loss over the first few hundred steps.",
        fingerprint=f"{RULE.code}:precision.autocast",
    )


def _fastest(run: RunView, dtype: str) -> float:
    """The share of a step that the FLOPs of fp32 products take at the peak of another type; 0 if not known."""
    found, peak = run.measured.known("efficiency"), run.measured.matmul.peaks.get(dtype)
    if found is None:
        return 0.0
    each_step, total, dtypes = (found.known(name) for name in ("flops_per_step", "flops", "dtypes"))
    if not peak or not each_step or not total:
        return 0.0
    products = sum(each.flops for each in dtypes or [] if each.dtype == "fp32")
    return float(products / total * each_step / peak * 1e9 / run.measured.step.time_ns)


def _evidence(run: RunView, share: float, kernels: str) -> Iterator[Evidence]:
    yield Evidence(label=f"fp32 {kernels}", value=share, unit="of a step").at(run.measured.where("fp32 matmul"))
    used = run.measured.matmul.known("tensor_core_share")
    if used is not None:
        yield Evidence(label="tensor-core kernels", value=run.unstretched(used), unit="of a step")
    for name in sorted({str(rank.known("device_name") or "") for rank in run.measured.ranks} - {""}):
        yield Evidence(label="device", value=name)
