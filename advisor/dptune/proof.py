"""What came of running a change: the trials of both sides, and the verdict on them.

A side is what was run: the script with some settings changed from outside. A trial is one run of a side, in processes
of its own; it counts by its median step, and by its fast step, than which a tenth of its steps are faster. Units are in
the names, as in `dptune.measured`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.knobs import Value
from dptune.measured import ABSENT, Figure, Figures, Model

SCHEMA_VERSION = "0.1"

SideName = Literal["A", "B"]
Status = Literal["ran", "failed", "hung", "out of memory", "no steps", "interrupted"]


class Side(Model):
    """What was run as one side."""

    name: str = Field(description="in words: `as it is`, or the settings")
    settings: dict[str, Value] = Field(default_factory=dict, description="by the names of knobs")
    command: list[str] = Field(default_factory=list, description="what was started, secrets redacted")
    directory: str = Field("", description="where, before it was copied for the trials")


class Trial(Figures):
    """One run of one side."""

    number: int = Field(description="in the order of running, from 1 on")
    side: SideName
    status: Status = Field(description="ran: it was timed; whatever else it came to is a result too")
    note: str = Field("", description="why it did not run to the end, in a sentence")
    began: str = Field(description="ISO 8601")
    seconds: float = Field(description="how long it took in all")
    steps: int = Field(0, description="steps that were timed, on the rank that has most")
    step_ns: Figure[int] = Field(ABSENT, description="median over ranks of each rank's median unprofiled step")
    fast_step_ns: Figure[int] = Field(
        ABSENT, description="median over ranks of the step than which a tenth of each rank's are faster"
    )
    samples_per_step: Figure[int] = Field(ABSENT, description="global batch")
    losses: list[float] = Field(default_factory=list, description="of the first backward passes, of the first rank")
    written_over: list[str] = Field(
        default_factory=list, description="files of the user's, linked into the copy it ran in, that it changed"
    )
    without_effect: dict[str, str] = Field(default_factory=dict, description="settings not in force, with the reason")


class Look(Model):
    """The state of the verdict after some trials: two tests are made at a few counts that were fixed before."""

    runs: int = Field(description="timed trials on each side")
    level: float = Field(description="of each test at this look")
    p_value: float = Field(description="of median steps: two-sided, of the exact Wilcoxon-Mann-Whitney test")
    ratio: float = Field(description="B / A of median steps, the median over all pairs of trials (Hodges-Lehmann)")
    fast_p_value: float = Field(description="of fast steps")
    fast_ratio: float = Field(description="B / A of fast steps")


class Learning(Figures):
    """Whether the first losses of B are those of A."""

    outcome: Literal["alike", "other", "not known"]
    reason: str = Field(description="one sentence")
    difference: Figure[float] = Field(
        ABSENT, description="largest |B - A| / |A| over the passes, of medians over trials"
    )
    spread: Figure[float] = Field(ABSENT, description="largest |A - A| / |A|, of repeats of A")
    allowed: Figure[float] = Field(ABSENT, description="what the numerics class of the change allows")


class Proof(Figures):
    """B against A, by running both."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that ran it")
    machine: str = Field(description="host, cores and device it ran on")
    a: Side
    b: Side
    advice: str = Field("", description="the rule whose advice this is; empty for other settings")
    objective: Literal["time per sample", "time per step"] = Field(description="what the verdict compares")
    trials: list[Trial]
    looks: list[Look]
    warmup: int = Field(description="optimizer steps that each trial lets pass")
    steps: int = Field(description="optimizer steps that each trial times at least")
    least_s: float = Field(description="seconds for which each trial times them at least")
    outcome: Literal["better", "worse", "inconclusive"] = Field(description="of B against A: better is quicker")
    decided_by: Literal["", "median", "fast"] = Field(description="the steps that lie apart; empty: undecided")
    reason: str = Field(description="one sentence: why it is that")
    ended: Literal["decided", "hopeless", "all trials made", "out of time", "interrupted", "cannot run"]
    level: float = Field(description="how often sides that do not differ are called better or worse, at most")
    a_ns: Figure[float] = Field(ABSENT, description="the objective of A, median over trials")
    b_ns: Figure[float] = Field(ABSENT, description="the objective of B")
    a_step_ns: Figure[float] = Field(ABSENT, description="step of A, median over trials")
    b_step_ns: Figure[float] = Field(ABSENT, description="step of B")
    ratio: Figure[float] = Field(ABSENT, description="B / A of median steps, the median over all pairs of trials")
    low_ratio: Figure[float] = Field(ABSENT, description="its interval, from")
    high_ratio: Figure[float] = Field(ABSENT, description="to")
    fast_ratio: Figure[float] = Field(ABSENT, description="B / A of fast steps")
    fast_low_ratio: Figure[float] = Field(ABSENT, description="its interval, from")
    fast_high_ratio: Figure[float] = Field(ABSENT, description="to")
    learning: Learning = Field(description="whether the change alters what is learned, as far as the first losses tell")
