"""The effect of changes on a step, predicted by replaying a recorded run. Units are in the names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.knobs import Value
from dptune.measured import ABSENT, Figure, Figures, Model

SCHEMA_VERSION = "0.2"
WORST_ERROR = 0.10  # of the unchanged replay: above it only a bound is given


Fits = Literal["yes", "no", "unknown"]


class MemoryComponent(Model):
    """One part of a rank's memory at the moment of the peak."""

    name: str = Field(description="what the tensors are")
    now_bytes: int = Field(description="at the peak of the recorded run")
    then_bytes: int = Field(description="at the peak with the changes")


NOT_TRACKED = "the function that builds the model was not given (--model)"


class MemoryPrediction(Figures):
    """Peak memory of a rank's tensors with several changes combined."""

    changes: dict[str, Value] = Field(description="values by name")
    now_bytes: Figure[int] = Field(ABSENT, description="the peak of the recorded run")
    peak_bytes: Figure[int] = Field(ABSENT, description="the peak with the changes")
    low_bytes: Figure[int] = Field(ABSENT, description="lower end of its interval")
    high_bytes: Figure[int] = Field(ABSENT, description="upper end of its interval")
    tracked_bytes: Figure[int] = Field(
        ABSENT, description="the peak with the changes by torch's memory tracker, with the script's model (--model)"
    )
    tracked_now_bytes: Figure[int] = Field(ABSENT, description="the same without the changes")
    phase: Figure[str] = Field(ABSENT, description="the phase of the step in which the peak is: forward, backward, ...")
    now_phase: Figure[str] = Field(ABSENT, description="the phase in which the peak of the recorded run is")
    overhead_bytes: Figure[int] = Field(
        ABSENT, description="not tensors: the CUDA context, libraries, memory that the allocator holds unused"
    )
    capacity_bytes: Figure[int] = Field(
        ABSENT, description="memory of the device; of a host whose CPUs compute, what is free for one rank"
    )
    fits: Fits = Field(description="whether the peak fits in 90 % of the capacity")
    components: list[MemoryComponent] = Field(default_factory=list, description="what the memory is, largest use first")


class Prediction(Figures):
    """The step with several changes combined: a step with its interval, a range of steps, or a bound."""

    changes: dict[str, Value] = Field(description="values by knob name")
    step_ns: Figure[int] = Field(
        ABSENT, description="an untraced step, with the changes; missing where only a range or a bound is known"
    )
    low_ns: Figure[int] = Field(
        ABSENT, description="lower end of its nominal 90 % interval, or of the range; or the bound"
    )
    high_ns: Figure[int] = Field(ABSENT, description="upper end of its interval or range; missing for a bound")
    global_batch: Figure[int] = Field(ABSENT, description="samples of a step with the changes, all ranks")
    ns_per_sample: Figure[float] = Field(ABSENT, description="that step / its samples")
    assumptions: list[str] = Field(default_factory=list, description="assumptions of the prediction")

    @property
    def is_range(self) -> bool:
        """Whether any step between both ends may be it, and none is named."""
        return self.known("step_ns") is None and self.known("high_ns") is not None

    @property
    def central_ns(self) -> float | None:
        """The step, or the middle of a range: for orders, and for no sentence. None for a bound."""
        return (self.low_ns + self.high_ns) / 2 if self.is_range else self.known("step_ns")


class BucketSize(Model):
    """The step with one size for all buckets."""

    cap_mb: float | None = Field(description="MiB; null for torch's default")
    buckets: int = Field(description="resulting number of buckets")
    step_ns: int = Field(description="the replayed step, other settings unchanged")


class Strategy(Figures):
    """One way to distribute the work over the ranks. Its step time is predicted or bounded."""

    name: str = Field(description="the strategy in words")
    state_bytes: Figure[int] = Field(
        ABSENT, description="trained parameters, gradients, buckets and optimizer state on one rank"
    )
    rank_bytes: Figure[int] = Field(ABSENT, description="peak memory of the tensors of one rank")
    fits: Fits = Field("unknown", description="whether that fits in 90 % of what a rank may use")
    step_ns: Figure[int] = Field(ABSENT, description="predicted step; missing where only its ends are known")
    low_ns: Figure[int] = Field(ABSENT, description="lower end of the step's interval, or its lower bound")
    high_ns: Figure[int] = Field(
        ABSENT, description="upper end of that interval, or upper bound; missing where only the lower bound is known"
    )
    samples_times: int = Field(1, description="samples of that step / of the current step")


class WhatIf(Figures):
    """Predictions for a run, and the errors and assumptions of the model."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that made it")
    measured_ns: Figure[int] = Field(ABSENT, description="the measured step")
    processes: int = Field(1, description="number of processes that this step is the median of")
    traced: bool = Field(False, description="whether it was measured with the profiler only, which slows the host")
    recorded: bool = Field(True, description="whether dptune recorded the run, so that `dptune verify` can repeat it")
    replayed_ns: Figure[int] = Field(ABSENT, description="the same step, replayed without changes")
    error_share: Figure[float] = Field(ABSENT, description="|replayed - measured| / measured: error of the model")
    held_out_share: Figure[float] = Field(
        ABSENT, description="error on held-out steps: each half replayed from the other half alone, mean of both"
    )
    variation_share: Figure[float] = Field(
        ABSENT,
        description="difference between alternate traced steps of the same kind, as a share of a step",
    )
    floor_ns: Figure[int] = Field(ABSENT, description="a step whose communication takes no time")
    global_batch: Figure[int] = Field(ABSENT, description="samples of a step, all ranks")
    link: Figure[str] = Field(ABSENT, description="source of the link's figures, in words")
    predictions: list[Prediction] = Field(default_factory=list, description="in the requested order, or the best found")
    memory: list[MemoryPrediction] = Field(
        default_factory=list, description="peak memory of a rank with each set of changes, in the order of predictions"
    )
    curve: list[BucketSize] = Field(default_factory=list, description="the bucket sizes of a search")
    strategies: list[Strategy] = Field(
        default_factory=list, description="other ways to distribute the work, if requested"
    )
    limits: list[str] = Field(
        default_factory=list, description="what the recording lacks, a sentence each, no full stop"
    )
    too_large: bool = Field(
        False, description="whether a rank's shard does not fit its device even if everything is sharded"
    )


def missed(error_share: float, held_out_share: float | None) -> str:
    """What the unchanged replay misses by more than WORST_ERROR; empty where that is nothing.

    `held_out_share` is None where the replay holds every recorded step, as on GPUs.
    """
    shares = {"the measured step": error_share, "held-out steps": held_out_share or 0.0}
    off = [f"{what} by {100 * share:.1f} %" for what, share in shares.items() if share > WORST_ERROR]
    return f"the unchanged replay misses {' and '.join(off)}" if off else ""
