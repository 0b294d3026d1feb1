"""What two sides of a comparison are found to differ in: A is the side named first, B the other.

A side is one run or several repeats of it. Every `Pair` is B against A, each the median over the runs of its side; a
positive difference means that B has more. Units are in the names, as in `dptune.measured`.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from dptune.advice import Headline
from dptune.knobs import Value
from dptune.measured import ABSENT, Figure, Figures, Model

SCHEMA_VERSION = "0.1"

Outcome = Literal["better", "worse", "inconclusive", "not comparable"]
Basis = Literal["untraced", "traced"]


class Pair(Figures):
    """One figure of A and of B, medians over their runs; missing on a side where a run of it lacks the figure."""

    a: Figure[float] = Field(ABSENT, description="value of A")
    b: Figure[float] = Field(ABSENT, description="value of B")
    difference: Figure[float] = Field(ABSENT, description="B - A")

    @classmethod
    def between(cls, a: float | None, b: float | None, no_a: str = "", no_b: str = "") -> Self:
        """The pair of two figures, of which a missing one gives its reason."""
        missing = {name: why for name, value, why in (("a", a, no_a), ("b", b, no_b)) if value is None}
        if a is None or b is None:
            return cls(a=a, b=b, missing={**missing, "difference": next(iter(missing.values()))})
        return cls(a=a, b=b, difference=b - a)


class ComparedRun(Figures):
    """One run of a side: one process, or one process for each rank."""

    side: Literal["A", "B"]
    name: str = Field(description="its name, as given")
    recorded: str = Field("", description="ISO 8601; empty for foreign traces")
    trust: Literal["sound", "partial", "unjudgeable"] = Field(description="data quality of the run")
    unjudged: str = Field("", description="why it prevents a verdict; empty where it does not")
    remedy: str = Field("", description="what to do about it")
    step_ns: Figure[int] = Field(ABSENT, description="its step time, on the basis of the comparison")
    time_ns: Figure[float] = Field(ABSENT, description="what the verdict compares: its time per sample, else per step")
    samples_inferred: bool = Field(
        False, description="whether its samples per step were inferred from the trace, not recorded"
    )


class Condition(Model):
    """Something that must be the same for two runs to be comparable."""

    name: str
    a: list[Value] = Field(description="the values found in the runs of A, each once")
    b: list[Value] = Field(description="the values found in the runs of B, each once")
    unknown: list[str] = Field(description="runs for which it is unknown")

    @property
    def differs(self) -> bool:
        """Whether two runs are known not to have the same."""
        return len({*self.a, *self.b}) > 1


class Verdict(Figures):
    """Whether B differs from A, by an exact Wilcoxon-Mann-Whitney test on one time per run."""

    outcome: Outcome = Field(description="of B against A: better means faster")
    reason: str = Field(description="one sentence: why this outcome")
    level: float = Field(
        description="significance level: upper bound of how often runs that do not differ are called better or worse"
    )
    runs_needed: int = Field(description="the fewest runs on each side with which the test can decide at that level")
    p_value: Figure[float] = Field(
        ABSENT, description="two-sided: the probability that chance alone separates the runs this far"
    )
    ratio: Figure[float] = Field(ABSENT, description="B's time / A's: median over all pairs of runs (Hodges-Lehmann)")
    low_ratio: Figure[float] = Field(ABSENT, description="lower end of its interval at 1 - level")
    high_ratio: Figure[float] = Field(ABSENT, description="upper end of its interval")


class CategoryDifference(Figures):
    """One class of the account, in a step of the side's step time."""

    category: str = Field(description="field of the account")
    a_ns: int = Field(description="time in A's median step: in the median run, or the mean of the two middle runs")
    b_ns: int = Field(description="time in B's step")
    difference_ns: int = Field(description="B - A; sums to the step's difference over all categories")
    share: Figure[float] = Field(
        ABSENT, description="share of the step's difference; negative where it goes the other way"
    )


class PhaseDifference(Model):
    """One phase of a step, scaled like the classes, but medians over runs: they sum only approximately to the step."""

    phase: str = Field(description="forward (and the rest), backward, optimizer or unknown")
    compute_ns: Pair = Field(description="compute per step")
    exposed_communication_ns: Pair = Field(description="exposed communication and waiting per step")


class RankDifference(Model):
    """One rank that was read in every run. Times are shares of its account, of its own step time."""

    rank: int
    step_ns: Pair = Field(description="its step time, on the basis of the comparison")
    compute_ns: Pair = Field(description="compute per step")
    exposed_communication_ns: Pair = Field(description="exposed communication and waiting per step")
    idle_ns: Pair = Field(description="idle time per step")
    loader_wait_share: Pair = Field(description="waiting for the data loader / step")
    lag_ns: Pair = Field(description="how late it arrives at collectives")


class TrafficDifference(Model):
    """Collectives of one kind, or copies of one direction and memory, per rank and step; traced times."""

    kind: str
    calls_per_step: Pair
    time_ns: Pair = Field(description="sum of durations; for collectives, waiting included")
    moved_bytes: Pair = Field(description="sum of messages, or of bytes copied")


class StragglerDifference(Model):
    """The rank that the others wait for most."""

    a_ranks: list[int] = Field(description="its number in each run of A")
    b_ranks: list[int] = Field(description="its number in each run of B")
    lag_ns: Pair = Field(description="how late it is in the median step")
    waiting_share: Pair = Field(
        description="exposed waiting for the last rank to arrive, all ranks, as a share of the step"
    )


class FactDifference(Model):
    """A setting that differs between A and B: no run of one side has a value of the other."""

    name: str = Field(description="`ddp.bucket_cap_mb`, `loader.num_workers`, `environment.OMP_NUM_THREADS`, ...")
    a: list[Value] = Field(description="its values in A; null where it is unset or absent")
    b: list[Value] = Field(description="its values in B")
    at: str | None = Field(None, description="file:line in B, else in A, where it is known")


class Compared(Figures):
    """B against A: figures, and whether they differ by more than chance."""

    objective: Literal["time per sample", "time per step"] = Field(description="what the verdict compares")
    basis: Basis = Field(description="which steps the times are from; traced and untraced are never compared")
    runs: list[ComparedRun]
    time_ns: Pair = Field(description="the objective")
    ratio: Figure[float] = Field(ABSENT, description="B's objective / A's")
    step_ns: Pair = Field(description="the step time")
    verdict: Verdict
    conditions: list[Condition] = Field(description="what must be the same")
    remarks: list[str] = Field(description="limitations of the comparison, a sentence each")
    categories: Figure[list[CategoryDifference]] = Field(
        ABSENT, description="the step's difference by class of the account"
    )
    phases: Figure[list[PhaseDifference]] = Field(ABSENT, description="forward, backward and optimizer")
    ranks: Figure[list[RankDifference]] = Field(ABSENT, description="ranks that were read in every run")
    collectives: Figure[list[TrafficDifference]] = Field(ABSENT, description="collectives, by kind")
    copies: Figure[list[TrafficDifference]] = Field(ABSENT, description="copies, by direction and memory")
    loader_wait_ns: Pair = Field(description="waiting for the data loader, per step")
    straggler: Figure[StragglerDifference] = Field(ABSENT, description="the rank that the others wait for most")
    facts: Figure[list[FactDifference]] = Field(
        ABSENT, description="settings that differ; only recorded runs have them"
    )


class Comparison(Model):
    """The result of `dptune compare`."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that wrote it")
    headline: Headline
    compared: Compared
