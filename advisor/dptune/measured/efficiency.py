"""Floating-point operations of the steps, and how much of the device's peak they reach."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dptune.measured.figure import ABSENT, Figure, Figures

FlopKind = Literal["matrix product", "convolution", "attention", "recurrent layer"]
_WITHHELD = 0.05  # of the CPU time: from there on reports mention other processes
_ALL = 0.95  # of the time of matrix kernels: some only prepare or sum up a product


class KindFlops(Figures):
    """FLOPs of the operators of one kind, and of the kernels that they launch."""

    kind: FlopKind = Field(description="what the operators compute")
    flops: int = Field(description="their FLOPs, over all steps that were read")
    time_ns: Figure[int] = Field(
        ABSENT, description="time of the kernels that they launch (on a CPU: of the operators), over the same steps"
    )
    flops_per_s: Figure[float] = Field(ABSENT, description="FLOPs / that time")


class DtypeFlops(Figures):
    """FLOPs of one element type, and the dense peak of the device for it."""

    dtype: str = Field(description="bf16, fp16, tf32, fp32, fp8, ...: tf32 where fp32 inputs ran on tensor cores")
    flops: int = Field(description="FLOPs in it, over all steps that were read")
    peak_flops_per_s: Figure[float] = Field(ABSENT, description="dense peak of one device, without sparsity")
    source: Figure[str] = Field(ABSENT, description="where the vendor states it, or how it was measured")


class EfficiencyFigures(Figures):
    """FLOPs per step, and the share of the device's peak that they reach.

    Counted as by `torch.utils.flop_counter`, with recurrent layers: matrix products, convolutions and attention, 2
    FLOPs per multiply-add, causal masks not subtracted. Model FLOPs are those of the forward and backward passes
    without recomputation (PaLM, Chowdhery et al. 2022, appendix B); hardware FLOPs are all. Of a device that ranks
    share, FLOPs are those of one rank, and the peak is its equal part.
    """

    rank: Figure[int] = Field(ABSENT, description="the rank whose operators were read; the others are assumed alike")
    window: Figure[Literal["light", "detailed"]] = Field(ABSENT, description="the window that they are from")
    scope: Literal["steps", "recording"] = Field(
        "steps", description="what is counted: steps, or the whole recording where none was found, as one step"
    )
    steps: int = Field(0, description="number of steps that were read")
    devices: int = Field(0, description="devices that this rank computes on")
    sharing_ranks: int = Field(1, description="ranks on the device of this rank: each has an equal part of its peak")
    flops: Figure[int] = Field(ABSENT, description="hardware FLOPs of that rank, over all steps that were read")
    recomputed_flops: Figure[int] = Field(
        ABSENT, description="part of them that repeats the forward pass: checkpointed modules, scores of attention"
    )
    optimizer_flops: Figure[int] = Field(ABSENT, description="part of them inside the optimizer's step()")
    flops_per_step: Figure[float] = Field(ABSENT, description="hardware FLOPs of one device in a step")
    model_flops_per_step: Figure[float] = Field(ABSENT, description="model FLOPs of one device in a step")
    kinds: Figure[list[KindFlops]] = Field(ABSENT, description="the FLOPs by kind of operator; they sum to all")
    dtypes: Figure[list[DtypeFlops]] = Field(ABSENT, description="the FLOPs by element type; they sum to all")
    uncounted: list[str] = Field(
        default_factory=list, description="operators that multiply matrices and whose sizes are not known"
    )
    packed: list[str] = Field(
        default_factory=list,
        description="attention operators on packed sequences of unknown lengths, counted as if these were equally "
        "long: the least that they compute",
    )
    counted_share: Figure[float] = Field(
        ABSENT, description="share of the time of matrix kernels that counted operators launched"
    )
    step_ns: Figure[float] = Field(ABSENT, description="the step time that the rates refer to")
    flops_per_s: Figure[float] = Field(ABSENT, description="hardware FLOPs of one device / step time")
    total_flops_per_s: Figure[float] = Field(ABSENT, description="hardware FLOPs of all devices of the run / step time")
    peak_flops_per_s: Figure[float] = Field(
        ABSENT,
        description="dense peak of one device for this mix of types: FLOPs / the least time they can take; of a device "
        "that ranks share, the equal part of one rank",
    )
    peak_basis: Figure[Literal["vendor", "measured"]] = Field(
        ABSENT, description="where the peak is from: the vendor, or matrix products after the recorded steps, on CPUs"
    )
    peak_withheld_share: Figure[float] = Field(
        ABSENT,
        description="upper bound of the CPU time that other processes withheld while the peak was measured, as a share "
        "of what the ranks needed",
    )
    mfu: Figure[float] = Field(ABSENT, description="model FLOPs / step time / peak: model FLOPs utilization")
    hfu: Figure[float] = Field(ABSENT, description="hardware FLOPs / step time / peak: hardware FLOPs utilization")
    memory_bound_share: Figure[float] = Field(
        ABSENT,
        description="time of kernels (on CPUs own time of operators) that move memory more than they compute "
        "(elementwise, reductions, normalization, indexing, pooling, softmax and loss, optimizer) / step",
    )
    samples_per_s: Figure[float] = Field(ABSENT, description="samples per second, all devices")
    tokens_per_step: Figure[int] = Field(ABSENT, description="tokens per optimizer step, all devices")
    tokens_per_s: Figure[float] = Field(ABSENT, description="tokens per second, all devices")
    shared_doubt: str = Field("", description="why ranks may share a GPU, so that devices are not counted; else empty")
    devices_between: list[int] = Field(
        default_factory=list,
        description="fewest and most devices that the run may have, if ranks may share a GPU; else empty",
    )
    all_devices: Figure[int] = Field(ABSENT, description="devices of the run; one that ranks share counts once")

    @property
    def lower_bound(self) -> bool:
        """Whether the step computes more than was counted."""
        share = self.known("counted_share")
        return bool(self.uncounted or self.packed) or (share is not None and share < _ALL)

    @property
    def peak_disturbed(self) -> bool:
        """Whether other processes may have kept the measured peak below what the CPU reaches."""
        return (self.known("peak_withheld_share") or 0.0) >= _WITHHELD

    @property
    def bound(self) -> str:
        """What stands before MFU and HFU: "" where both the FLOPs and the peak are known."""
        if self.peak_disturbed:
            return "about " if self.lower_bound else "at most "
        return "at least " if self.lower_bound else ""

    @property
    def main_dtypes(self) -> list[str]:
        """The element types of nearly all FLOPs, the most first."""
        dtypes: list[DtypeFlops] = self.known("dtypes") or []
        total = sum(each.flops for each in dtypes)
        return [each.dtype for each in dtypes if each.flops * 10 >= total]

    @model_validator(mode="after")
    def _sums(self) -> EfficiencyFigures:
        flops = self.known("flops")
        for parts in (self.known("kinds"), self.known("dtypes")):
            if parts is not None and sum(part.flops for part in parts) != flops:
                raise ValueError(f"FLOPs do not sum up: {parts}, all {flops}")
        return self
