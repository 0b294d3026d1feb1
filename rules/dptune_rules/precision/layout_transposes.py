"""Convolutions transpose their tensors between NCHW and NHWC.

## What it measures

The share of the step in cuDNN's kernels `nchwToNhwc` and `nhwcToNchw`.

## Why it matters

Tensor cores compute convolutions in the NHWC layout, where the channels of a pixel are next to each other. torch's
default is NCHW. cuDNN then transposes the input, the weights and the result of each convolution, in the forward and in
the backward pass. Each transpose is a kernel that reads and writes a whole tensor.

## What to change

    model = model.to(memory_format=torch.channels_last)
    images = images.to(device, memory_format=torch.channels_last)

Layers preserve the layout. For 3D convolutions use `torch.channels_last_3d`.

The upper bound is all time in these kernels. Normalization and pooling may get faster, too.

## When to leave it alone

- Layers between the convolutions lack an NHWC implementation: they copy their tensors, which costs as much.
- Convolutions run in full fp32, on a GPU without TF32: they compute in NCHW.

## References

- PyTorch, "Channels Last Memory Format in PyTorch" (22 % for ResNet-50, 8 to 35 % for other models, on V100 in fp16):
  https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
- NVIDIA, "Convolutional Layers User's Guide", tensor layouts:
  https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html
- Tried on public traces: ResNet-50 in TF32 on an A100, where 211 of 900 kernels of a step are such transposes; no
  finding for training on a V100 in fp32 (0.2 % of a step).
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import digits
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

RULE = Rule(
    code="DP410",
    name="layout-transposes",
    family="precision",
    kind="time",
    summary="convolutions transpose their tensors between NCHW and NHWC",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose channels_last where the transposes take a share of the step worth it."""
    if run.measured.device_kind != "cuda":
        return
    share = run.unstretched(run.measured.matmul.layout_share)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    compute = run.measured.share("compute_ns")
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Convolutions transpose their tensors {run.measured.matmul.layout_calls:.0f} times per step "
        f"({digits(100 * share)} % of a step): use the channels_last memory format",
        why="Tensor cores compute convolutions in NHWC, but these tensors are in NCHW.",
        changes=[],
        remedy="Convert the model and its input: .to(memory_format=torch.channels_last).",
        saves=run.bound(0.0, share, "the time of these kernels"),
        confidence="medium",
        evidence=[
            Evidence(label="transposes between NCHW and NHWC", value=share, unit="of a step").at(
                run.measured.where("layout change")
            ),
            Evidence(
                label="the same kernels", value=run.measured.matmul.layout_share / compute, unit="of the compute time"
            ),
            Evidence(label="kernels", value=round(run.measured.matmul.layout_calls, 1), unit="per rank and step"),
        ],
        numerics="same",
        watch="Results agree up to floating-point rounding.",
        fingerprint=RULE.code,
    )
