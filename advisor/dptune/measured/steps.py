"""Which steps the figures refer to, how long a step takes, and what it waits for and accumulates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import ABSENT, Figure, Figures, Model, Positive, in_ms

# Why the last traced step may be in no figure.
CUT_SHORT = "the trace ends before the next step starts, so the wait at its end is unknown"
_UNEVEN = 0.3  # interquartile range / median: from here on few steps take as long as the mean step
_MEAN_DIFFERS = 0.2  # of the mean step: from here on the median alone misleads
StepBasis = Literal["profiler_step", "optimizer", "repeating"]


class SetAsideStep(Model):
    """A step that is excluded from all figures, on all ranks, because it took much longer than the others."""

    number: int = Field(description="its number")
    length_ns: int = Field(description="how long it took: median over ranks")
    of_usual: float = Field(description="that / the median of the steps that are kept")
    warm_up: bool = Field(description="whether it is the first step, or follows only excluded steps")
    mean_ns: int = Field(0, description="how long it took: mean over ranks")
    rank: int | None = Field(
        None,
        description="the only rank on which it took that long: the other ranks wait for it in a later step, or, of two "
        "ranks, this one waits; the times are then of this rank",
    )
    loader_wait_ns: int = Field(0, description="of it, inside the DataLoader's `__next__`: median over ranks")
    idle_ns: int = Field(0, description="of it, with nothing running on a rank's busiest device: median over ranks")
    host_ns: int = Field(0, description="how long it took on the host (CPU): median over ranks")

    @property
    def spent(self) -> str:
        """What most of its extra time was, in words; empty where it is no wait, idle time or lag of the device."""
        extra_ns = self.length_ns * (1 - 1 / self.of_usual)
        beyond_ns = self.length_ns - self.host_ns if self.host_ns else 0
        if 2 * beyond_ns >= extra_ns > 0 and 2 * self.idle_ns <= beyond_ns:  # an idle device has no queue to work off
            return f"{in_ms(beyond_ns)} ms more than on the host: the launch queue drains"
        if 2 * self.loader_wait_ns >= extra_ns > 0:
            return f"{in_ms(self.loader_wait_ns)} ms of it waiting for the data loader"
        if 2 * self.idle_ns >= extra_ns > 0:
            return f"{in_ms(self.idle_ns)} ms of it with the device idle"
        return ""


class StepGroup(Model):
    """Steps that recur with a period and differ from others: an optimizer every second step, for example."""

    numbers: list[int] = Field(description="their numbers")
    mean_ns: int = Field(description="their mean time")


class StepsFigures(Figures):
    """Which steps the figures of this run refer to, and how their starts were found."""

    basis: StepBasis = Field(
        description="ranges of the profiler, ends of the optimizer's step(), or what repeats in the operations"
    )
    similarity: Figure[float] = Field(
        ABSENT, description="similarity of the steps' operations, 0 to 1, on the rank where it is lowest"
    )
    by_rank: dict[int, int] = Field(default_factory=dict, description="number of the rank -> number of its steps")
    without_work: int = Field(
        0, description="steps that launched no device work, attributed to the preceding step: the most on any rank"
    )
    set_aside: list[SetAsideStep] = Field(default_factory=list, description="steps that took much longer")
    groups: list[StepGroup] = Field(
        default_factory=list, description="groups of alternating steps; empty where none recurs with a period"
    )
    grouped_by: Literal["operations", "time"] = Field(
        "operations", description="what differs between these groups: what they launch, or only how long they take"
    )
    period: int = Field(1, description="every how many steps the groups recur; 1 without groups")
    surplus: list[int] = Field(
        default_factory=list, description="steps excluded from all figures because they do not complete a period"
    )
    cut_short: list[int] = Field(
        default_factory=list,
        description="the last step of a rank, if it lacks the wait before the next: excluded from that rank's figures",
    )
    queued_before_ns: int = Field(
        0,
        description="device time that these steps spend on work launched before them, on the rank where it is longest; "
        "0 if the last step excludes the work that it leaves queued",
    )


class StepTime(Figures):
    """How long a step takes: untraced, and in each traced window, as median over ranks of medians."""

    basis: Literal["untraced", "traced"] = Field(description="what the milliseconds of a report are scaled to")
    time_ns: Figure[Positive] = Field(
        ABSENT,
        description="the step time of the report, on `basis`: untraced the median, with `repeats_ns` "
        "over processes; traced the mean of the account's steps, whose parts add up to it",
    )
    repeats_ns: list[Positive] = Field(
        default_factory=list,
        description="an untraced step in further processes of the same script: medians, as `untraced_median_ns`",
    )
    untraced_median_ns: Figure[Positive] = Field(
        ABSENT, description="an untraced step: median over ranks of each rank's median"
    )
    untraced_q1_ns: Figure[Positive] = Field(
        ABSENT, description="their first quartile: median over ranks of each rank's"
    )
    untraced_q3_ns: Figure[Positive] = Field(
        ABSENT, description="their third quartile: median over ranks of each rank's"
    )
    untraced_mean_ns: int = Field(0, description="mean untraced step: median over ranks of each rank's; 0: none")
    untraced_period: int = Field(
        1, description="period, in steps, with which untraced times repeat; 1 if they do not alternate"
    )
    untraced_steps: int = Field(0, description="untraced steps, on the rank with most")
    untraced_outliers: int = Field(
        0, description="those of them that took much longer than the others, on the rank with most; all are kept"
    )
    longest_outlier_ns: int = Field(0, description="the longest of them on any rank; 0: none")
    longest_outlier_wait_ns: int = Field(0, description="of it, inside the DataLoader's `__next__`")
    light_median_ns: Figure[Positive] = Field(ABSENT, description="a step of the light window, slowed by the profiler")
    light_q1_ns: Figure[Positive] = Field(ABSENT, description="their first quartile: median over ranks of each rank's")
    light_q3_ns: Figure[Positive] = Field(ABSENT, description="their third quartile: median over ranks of each rank's")
    light_steps: int = Field(0, description="steps of the light window, on the rank with most")
    detailed_median_ns: Figure[Positive] = Field(ABSENT, description="a step of the detailed window, slowed further")
    detailed_steps: int = Field(0, description="steps of the detailed window, on the rank with most")

    @property
    def average(self) -> Literal["mean", "median"]:
        """Which average of the steps `time_ns` is."""
        return "mean" if self.basis == "traced" else "median"

    @property
    def uneven(self) -> bool:
        """Whether the step time is a mean of traced steps that vary a lot: few steps take that long."""
        low, middle, high = self.known("light_q1_ns"), self.known("light_median_ns"), self.known("light_q3_ns")
        return self.basis == "traced" and bool(low and middle and high and high - low > _UNEVEN * middle)

    @property
    def rate_ns(self) -> float | None:
        """The step time that rates refer to: the mean untraced step where steps vary a lot."""
        return self.untraced_mean_ns if self.slow_share else self.known("time_ns")

    @property
    def slow_share(self) -> float:
        """The share of the time that steps take longer than the median one; 0 where that is little."""
        typical_ns = self.known("untraced_median_ns") or 0
        share = 1 - typical_ns / self.untraced_mean_ns if self.untraced_mean_ns else 0.0
        return share if share >= _MEAN_DIFFERS else 0.0


class PreparingFigures(Model):
    """The parts of preparing a batch, on average, for the loader that steps drew from, in any process."""

    batch_ns: int = Field(description="reading and collating one batch: the mean")
    reading_share: float = Field(description="part of that in which samples are read from the data set and transformed")
    reading_computed_share: float = Field(description="part of reading in which it computes; in the rest it waits")
    collating_share: float = Field(description="part of preparing in which samples are made into a batch")
    computed_share: float = Field(description="part of preparing in which it computes")
    read_by: str = Field("", description="the function that reads samples, with its first line")
    collated_by: str = Field("", description="the function that collates them into a batch, with its first line")
    tensors: int | None = Field(None, description="tensors in a batch: the mean; null if not recorded")
    tensor_bytes: int | None = Field(
        None, description="bytes of the tensors in a batch: the mean; null if not recorded"
    )


class InputFigures(Figures):
    """Waiting for the data loader, per rank and step."""

    wait_share: Figure[float] = Field(
        ABSENT,
        description="waiting for the data loader / step: untraced where recorded, the median over ranks; traced of "
        "the account's steps, the mean over ranks",
    )
    wait_ns: Figure[int] = Field(ABSENT, description="that share of the step time")
    computed_share: Figure[float] = Field(
        ABSENT, description="part of the wait in which the training thread computed; in the rest it slept"
    )
    other_share: float = Field(
        0.0,
        description="part of the wait that is known not to be preparing batches: the sampler, pinning memory; 0 where "
        "workers prepare them",
    )
    basis: Literal["untraced", "traced"] = Field("traced", description="which steps the wait is from")
    least_share: float = Field(
        0.0,
        description="of traced steps: the wait less 10 us for each event recorded in it / step, the most that the "
        "profiler can add; 0 where the wait is untraced",
    )
    preparing: Figure[PreparingFigures] = Field(ABSENT, description="batch preparation, on the rank that waits longest")


class AccumulationFigures(Figures):
    """Micro-batches per optimizer step, and how many of them all-reduced gradients."""

    backwards_per_step: Figure[int] = Field(ABSENT, description="calls of backward per optimizer step")
    synchronised_backwards_per_step: Figure[int] = Field(ABSENT, description="those of them that all-reduced gradients")


class NoiseFigures(Figures):
    """The gradient noise scale: the batch size above which larger batches help little.

    Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training". `low` and `high` are a 90 % bootstrap
    interval over the steps.
    """

    steps: int = Field(description="steps in which gradient norms were measured")
    small_batch: int = Field(description="samples of the small gradient: of a backward pass of one rank")
    large_batch: int = Field(description="samples of the large gradient: of a step of all ranks")
    noise_scale: Figure[float] = Field(
        ABSENT, description="samples: variance of one sample's gradient / square of the mean gradient's norm"
    )
    low: Figure[float] = Field(ABSENT, description="lower end of its interval, in samples")
    high: Figure[float] = Field(ABSENT, description="upper end of its interval, in samples")
