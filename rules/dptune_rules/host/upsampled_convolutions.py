"""Tensors are upsampled before a 1x1 convolution, which could run on the small tensor first.

## What it measures

Interpolation (`F.interpolate`, `nn.Upsample`) that only views separate from a 1x1 convolution with fewer output than
input channels, in a function of the script, with the nodes of their backward pass. Read from the order and input sizes
of operators in the detailed window. The share is of the untraced step. On a GPU it is
the time of the kernels that these operators launch.

## Why it matters

Interpolation mixes pixels of one channel, and such a convolution mixes channels of one pixel. Their order does not
change the result: interpolation weights add up to 1, which keeps the bias. Upsampling C channels and then reducing them
to K reads and writes C / K times as much as upsampling K channels, and the convolution computes on all upsampled
pixels.

## What to change

    F.interpolate(self.classify(features), size=size, mode="bilinear")

in place of `self.classify(F.interpolate(features, size=size, mode="bilinear"))`.

The saving is at most, of the interpolation, the part of the channels that the convolution drops, and of the convolution
the part of the pixels that are interpolated. On a CPU it is predicted: from 0.75 to 1.05 times this, as measured
(References). Otherwise it is an upper bound.

## When to leave it alone

- A normalization, an activation or dropout is between the two: the order then matters. No finding.
- The convolution pads its input (`padding=1` with a kernel of 1): pixels at the border differ.

## References

- torch.nn.functional.interpolate: https://pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html
- Long, Shelhamer, Darrell, "Fully Convolutional Networks for Semantic Segmentation" (2015), which scores first and
  then upsamples: https://arxiv.org/abs/1411.4038
- CPU time in turn, one thread, forward and backward, 32 to 256 channels to 2 to 19, upsampled 2 to 8 times, bilinear
  and nearest: the other order saved 0.96 to 1.01 times the bound, and for 8 x 8 pixels of one sample 0.76 times.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import UpsampledConvolution
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.host.costly_functions import costs, seen_in_kernels

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

SAVED_PART = (0.75, 1.0, 1.05)  # of the upper bound, see References

RULE = Rule(
    code="DP624",
    name="upsampled-convolutions",
    family="host",
    kind="time",
    summary="tensors are upsampled before a 1x1 convolution instead of after it",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function in which the other order saves a share of the step worth it."""
    seen = seen_in_kernels(run, lambda name: "upsample" in name.lower())
    if run.measured.known("user_code") is None and not seen:
        return  # no interpolation is among the kernels or operators that take most
    found = run.measured.user_code
    for function in found.upsampled_convolutions:
        if run.impact(function.saved_share, WORTH_SHARE):
            yield _advice(run, function, traced=found.basis == "traced")


def _advice(run: RunView, function: UpsampledConvolution, *, traced: bool) -> Advice:
    where = run.hottest_line(function.name, function.at) or function.at
    before, after = _size(function.before), _size(function.after)
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=run.impact(function.saved_share, WORTH_SHARE) or "low",
        title=f"`{function.name}` ({where}) upsamples {function.after[1]} channels to {_size(function.after[2:])} "
        f"before a 1x1 convolution to {function.channels} channels, {100 * function.share:.0f} % of the step: "
        "run the convolution first",
        why="The order does not change the result, and the convolution leaves fewer channels to upsample.",
        changes=[],
        saves=_predicted(run, function)
        or run.bound(0.0, function.saved_share, "channels not upsampled, and pixels not convolved"),
        confidence="low" if traced or not run.times_hold else "medium",
        evidence=[
            *costs(f"{function.name} at {function.at}", function),
            Evidence(label="upsampled", value=f"{before} to {after}"),
            Evidence(label="output channels", value=function.channels),
            Evidence(label="calls", value=round(function.calls, 1), unit="per step"),
            *call_path_evidence(run, function.name, function.at),
        ],
        numerics="same",
        watch="Outputs agree up to floating-point rounding, if the convolution does not pad.",
        fingerprint=f"{RULE.code}:{function.name}",
    )


def _predicted(run: RunView, function: UpsampledConvolution) -> Saving | None:
    of_all = min(1.0, function.saved_share / function.share)
    how = "the other order saved 0.75 to 1.05 times the part of dropped channels and added pixels in measurements"
    return run.replaced(function, SAVED_PART, how, of_all=of_all)


def _size(shape: list[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape)
