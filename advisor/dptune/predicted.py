"""The effect of changes on a step, predicted by replaying a recorded run. Units are in the names."""

from __future__ import annotations

from pydantic import Field

from dptune.knobs import Value
from dptune.measured import ABSENT, Figure, Figures, Model

SCHEMA_VERSION = "0.2"
WORST_ERROR = 0.10  # of the unchanged replay: above it only a bound is given


class Prediction(Figures):
    """The step with several changes combined."""

    changes: dict[str, Value] = Field(description="values by knob name")
    step_ns: Figure[int] = Field(
        ABSENT, description="an untraced step, with the changes; missing where only a bound is known"
    )
    low_ns: Figure[int] = Field(ABSENT, description="lower end of its nominal 90 % interval; or the bound")
    high_ns: Figure[int] = Field(ABSENT, description="upper end of its interval")
    global_batch: Figure[int] = Field(ABSENT, description="samples of a step with the changes, all ranks")
    ns_per_sample: Figure[float] = Field(ABSENT, description="that step / its samples")
    assumptions: list[str] = Field(default_factory=list, description="assumptions of the prediction")


class BucketSize(Model):
    """The step with one size for all buckets."""

    cap_mb: float | None = Field(description="MiB; null for torch's default")
    buckets: int = Field(description="resulting number of buckets")
    step_ns: int = Field(description="the replayed step, other settings unchanged")


class Strategy(Figures):
    """One way to distribute the work over the ranks. The step time is bounded, not predicted."""

    name: str = Field(description="the strategy in words")
    state_bytes: int = Field(description="trained parameters, gradients, buckets and optimizer state on one rank")
    rank_bytes: Figure[int] = Field(ABSENT, description="the same plus activations, at the peak")
    low_ns: int = Field(description="lower bound of the step")
    high_ns: Figure[int] = Field(
        ABSENT, description="upper bound of the step; missing where only the lower bound is known"
    )
    samples_times: int = Field(1, description="samples of that step / of the current step")


class WhatIf(Figures):
    """Predictions for a run, and the errors and assumptions of the model."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that made it")
    measured_ns: Figure[int] = Field(ABSENT, description="the measured step")
    processes: int = Field(1, description="number of processes that this step is the median of")
    traced: bool = Field(False, description="whether it was measured with the profiler only, which slows the host")
    replayed_ns: Figure[int] = Field(ABSENT, description="the same step, replayed without changes")
    error_share: Figure[float] = Field(ABSENT, description="|replayed - measured| / measured: error of the model")
    held_out_share: Figure[float] = Field(
        ABSENT, description="error on held-out steps: each half replayed from the other half alone, mean of both"
    )
    variation_share: Figure[float] = Field(
        ABSENT, description="difference between the means of every second traced step and the others, / their mean"
    )
    floor_ns: Figure[int] = Field(ABSENT, description="a step whose communication takes no time")
    global_batch: Figure[int] = Field(ABSENT, description="samples of a step, all ranks")
    link: Figure[str] = Field(ABSENT, description="source of the link's figures, in words")
    predictions: list[Prediction] = Field(default_factory=list, description="in the requested order, or the best found")
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
