"""Model FLOPs utilization is low, and one kind of kernel accounts for most of what is lost on the GPU.

## What it measures

For each kind of operators that multiplies (matrix products, convolutions, attention, recurrent layers): the time of its
kernels, and their FLOPs per second relative to the best that such kernels reach. The time that a kind wastes is its
time times its distance from that best. Kernels that compute no counted FLOPs and could be fused (elementwise,
normalization, reductions, softmax and loss) waste their whole time where nothing is compiled. The largest is reported.

## Why it matters

MFU is the part of the GPU that the model's own arithmetic uses. Where neither communication nor the host delays the
GPU, the kernels themselves are slow.

## What to change

- Matrix products, convolutions: larger batches or wider layers, sizes that are multiples of 64, lower precision.
  Small products of one shape can be batched; fp8 needs large ones.
- Attention: `F.scaled_dot_product_attention` in bf16 or fp16, which uses a fused kernel.
- Recurrent layers: longer or more sequences at once; several layers in one module.
- Kernels that could be fused: `torch.compile`, or fused implementations of the norm, the activation and the loss.

The upper bound is what the kind wastes: the other kernels remain.

## When to leave it alone

- The GPU is idle or waits for most of the step: fix that first.
- The model is small on purpose; no batch fills the GPU.
- Another finding explains these kernels: unaligned sizes, fp32, eager attention, layout transposes.

## References

- Chowdhery et al. 2022, "PaLM", appendix B, defines MFU: https://arxiv.org/abs/2204.02311
- Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 4: 38 to 43 % on H100s: https://arxiv.org/abs/2407.21783
- Tried on public traces: recommendation training on an A100 (MFU 3.7 %, 22 % of a step in kernels that could be
  fused); no finding for a compiled GPT on eight H100 (22 %; its products reach 69 % of the peak), nor for a GPU that
  waits for launches (2.8 %).
- Preview: in recordings of an H200 it fires with other planted faults, eager attention among them (12 to 56 % of a
  step in kernels that could be fused); what fusing them saves was not measured where it fires.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dptune.advice import Advice, Evidence
from dptune.measured import DtypeFlops, EfficiencyFigures, KindFlops, Missing, digits
from dptune.rule import Rule, RunView, Threshold

LOW_MFU = Threshold("low_mfu", 0.3, "tuned training of large models reaches 0.38 to 0.43 (see References)")
WORTH_SHARE = Threshold("worth_share", 0.1, "a kind that wastes less is not what makes MFU low")
REACHED = Threshold("reached", 0.7, "of the dense peak: products of a tuned GPT on H100s reach 0.69 to 0.70 of it")

LEAST_COUNTED = 0.9  # of the time of matrix kernels: below it the rates say too little
FEW_FLOPS = 0.01  # of all: a type with fewer is not what a kind computes in
FUSED = ("elementwise", "normalization", "reduction", "softmax and loss")
REMEDIES = {
    "matrix product": "larger or batched products, lower precision",
    "convolution": "larger batches, channels_last, lower precision",
    "attention": "fused attention in 16 bits",
    "recurrent layer": "longer or more sequences at once",
}
COMPILE = "fuse them with torch.compile"

RULE = Rule(
    code="DP411",
    name="far-from-peak",
    family="precision",
    kind="time",
    summary="model FLOPs utilization is low, and one kind of kernel loses most of the GPU's time",
    since="0.1",
    thresholds=(LOW_MFU, WORTH_SHARE, REACHED),
    preview=True,  # until what it bounds is measured on a card where it fires
)


class _Kind(NamedTuple):
    """A kind of kernels: its time and what it wastes, as shares of a step, and its rate as a share of the peak."""

    name: str
    share: float
    wasted: float
    rate: float | None
    remedy: str


def check(run: RunView) -> Iterator[Advice]:
    """Name the kind that wastes most, where MFU is low."""
    if run.measured.device_kind == "cpu":
        return
    found = run.measured.efficiency
    mfu = found.mfu
    if found.counted_share < LEAST_COUNTED:
        raise Missing(f"operators with known sizes account for {100 * found.counted_share:.0f} % of the matrix kernels")
    if any(rank.gpu_ranks for rank in run.measured.ranks):
        raise Missing("several ranks run on one GPU: their kernels take longer than their FLOPs need")
    if mfu >= run.limit(LOW_MFU):
        return
    kinds = [*_multiplying(run, found), *_fusible(run)]
    worst = max(kinds, key=lambda kind: kind.wasted, default=None)
    if worst is None:
        return
    impact = run.impact(worst.wasted, WORTH_SHARE)
    if impact is None:
        return
    at = "compute no counted FLOPs" if worst.rate is None else f"run at {100 * worst.rate:.0f} % of the GPU's peak"
    noun = "kernels that could be fused" if worst.rate is None else f"{worst.name} kernels"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"MFU is {100 * mfu:.2g} %: {noun} take {100 * worst.share:.0f} % of a step and {at}: {worst.remedy}",
        why="Among all kinds of kernels this one wastes most: time times the distance from what such kernels reach.",
        changes=[],
        saves=run.bound(0.0, worst.wasted, "the time that these kernels waste"),
        confidence="low",
        evidence=[
            Evidence(label="model FLOPs utilization", value=mfu, unit="of the dense peak"),
            *(Evidence(label=_label(kind), value=kind.wasted, unit="of a step") for kind in _most_first(kinds)),
        ],
        numerics="changes",
        watch="Lower precision and other kernels round differently: compare the loss.",
        fingerprint=f"{RULE.code}:{worst.name}",
    )


def _multiplying(run: RunView, found: EfficiencyFigures) -> Iterator[_Kind]:
    """Kinds with FLOPs, compared with the lowest peak of the types that the step computes in."""
    dtypes: list[DtypeFlops] = found.dtypes
    peaks = [each.peak_flops_per_s for each in dtypes if each.flops >= FEW_FLOPS * found.flops]
    kinds: list[KindFlops] = found.kinds
    for kind in kinds:
        time_ns, rate = kind.known("time_ns"), kind.known("flops_per_s")
        if not time_ns or rate is None or not peaks:
            continue
        share = time_ns / (found.steps * found.devices * found.step_ns)
        reached = rate / min(peaks)
        wasted = share * max(0.0, 1 - reached / run.limit(REACHED))
        yield _Kind(kind.kind, min(1.0, share), min(1.0, wasted), reached, REMEDIES[kind.kind])


def _fusible(run: RunView) -> Iterator[_Kind]:
    """Kernels that torch.compile fuses, of a run that compiles nothing."""
    kinds_ns, account = run.measured.kernels.known("kinds_ns") or {}, run.measured.account
    try:
        compiles = run.any_facts("compiled").compiled is not None
    except Missing:  # the trace does not show it
        return
    if compiles or not account.window_ns:
        return
    share = run.unstretched(sum(kinds_ns.get(kind, 0) for kind in FUSED) / account.window_ns)
    yield _Kind("fusible", share, share, None, COMPILE)


def _most_first(kinds: list[_Kind]) -> list[_Kind]:
    return sorted((kind for kind in kinds if kind.wasted > 0), key=lambda kind: -kind.wasted)


def _label(kind: _Kind) -> str:
    if kind.rate is None:
        return "wasted by kernels that could be fused"
    return f"wasted by {kind.name} kernels ({digits(100 * kind.rate)} % of the peak)"
