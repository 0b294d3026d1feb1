"""What changes would do to a step, as the replay of a recorded run tells. Units are in the names."""

from __future__ import annotations

from pydantic import Field

from dptune.knobs import Value
from dptune.measured import ABSENT, Figure, Figures, Model

SCHEMA_VERSION = "0.2"
WORST_ERROR = 0.10  # of the unchanged replay: beyond it only a bound is told


class Prediction(Figures):
    """The step with some changes together."""

    changes: dict[str, Value] = Field(description="by the names of knobs")
    step_ns: Figure[int] = Field(
        ABSENT, description="a step without the profiler, with the changes; missing where only a bound is known"
    )
    low_ns: Figure[int] = Field(ABSENT, description="its interval, nominally of 90 %, from; or the bound")
    high_ns: Figure[int] = Field(ABSENT, description="to")
    global_batch: Figure[int] = Field(ABSENT, description="samples of a step with the changes, all ranks")
    ns_per_sample: Figure[float] = Field(ABSENT, description="that step / its samples")
    assumptions: list[str] = Field(default_factory=list, description="what is taken for granted")


class BucketSize(Model):
    """The step with one size asked for all buckets."""

    cap_mb: float | None = Field(description="MiB; none for torch's default")
    buckets: int = Field(description="how many come of it")
    step_ns: int = Field(description="the step as replayed, other settings as they are")


class Strategy(Figures):
    """One way to share the work among the ranks. The step lies between bounds; nothing is predicted of it."""

    name: str = Field(description="what it is, in words")
    state_bytes: int = Field(
        description="parameters that are trained, gradients, buckets and the optimizer's state that a rank holds"
    )
    rank_bytes: Figure[int] = Field(ABSENT, description="the same with activations, at the peak")
    low_ns: int = Field(description="a step takes at least")
    high_ns: Figure[int] = Field(ABSENT, description="and at most; missing where only a least is known")
    samples_times: int = Field(1, description="samples of that step / of one as it is")


class WhatIf(Figures):
    """Predictions for a run, and what they rest on."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that made it")
    measured_ns: Figure[int] = Field(ABSENT, description="a step as it was measured")
    processes: int = Field(1, description="whose middle step that is")
    traced: bool = Field(False, description="whether that was with the profiler only, which slows the host")
    replayed_ns: Figure[int] = Field(ABSENT, description="the same as the unchanged model has it")
    error_share: Figure[float] = Field(ABSENT, description="|replayed - measured| / measured: what all this rests on")
    held_out_share: Figure[float] = Field(
        ABSENT, description="the same of each half of the steps, replayed from the other half alone: the mean"
    )
    floor_ns: Figure[int] = Field(ABSENT, description="a step whose exchange takes no time")
    global_batch: Figure[int] = Field(ABSENT, description="samples of a step, all ranks")
    link: Figure[str] = Field(ABSENT, description="what the link was taken from, in words")
    predictions: list[Prediction] = Field(default_factory=list, description="in the order of asking, or the best found")
    curve: list[BucketSize] = Field(default_factory=list, description="the bucket sizes that a search went through")
    strategies: list[Strategy] = Field(default_factory=list, description="other ways to share the work, if asked for")
    limits: list[str] = Field(
        default_factory=list, description="what the recording lacks, a sentence each, no full stop"
    )
    too_large: bool = Field(False, description="whether a rank's part does not fit its device however it is sharded")


def missed(error_share: float, held_out_share: float) -> str:
    """What the unchanged replay misses by more than WORST_ERROR; empty where that is nothing."""
    shares = {"the measured step": error_share, "held-out steps": held_out_share}
    off = [f"{what} by {100 * share:.1f} %" for what, share in shares.items() if share > WORST_ERROR]
    return f"the unchanged replay misses {' and '.join(off)}" if off else ""
