"""What came of running a change: the trials of both sides, and the verdict on them.

A side is what was run: the script, patched or with settings changed from outside. A trial is one run of a side, in
processes of its own; it counts by its mean step, and by its fast step, than which a tenth of its steps are faster.
Units are in the names, as in `dptune.measured`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator

from dptune.knobs import UNKNOWN, Value
from dptune.measured import ABSENT, Figure, Figures, Model

SCHEMA_VERSION = "0.3"

SideName = Literal["A", "B"]
Ended = Literal[
    "decided",
    "excluded",
    "hopeless",
    "narrow",
    "all trials made",
    "out of time",
    "under way",
    "interrupted",
    "cannot run",
    "without effect",
    "not comparable",
]
Status = Literal["ran", "failed", "hung", "out of memory", "no steps", "interrupted"]


class Side(Model):
    """What was run as one side. Text that is not in UTF-8 is escaped."""

    name: str = Field(description="in words: `as it is`, or the settings")
    settings: dict[str, Value] = Field(default_factory=dict, description="by the names of knobs")
    command: list[str] = Field(default_factory=list, description="what was started, secrets redacted")
    directory: str = Field("", description="where, before it was copied for the trials")
    code: str = Field("", description="a digest of the code there, of torch's version and of the environment")
    patched: list[str] = Field(
        default_factory=list, description="files changed by the patch of `dptune report --patch`"
    )

    @field_validator("name", "directory", "command", "patched", mode="before")
    @classmethod
    def _in_utf8(cls, value: Any) -> Any:
        if isinstance(value, str):
            return value.encode(errors="backslashreplace").decode()
        return [cls._in_utf8(part) for part in value] if isinstance(value, list) else value


class Trial(Figures):
    """One run of one side."""

    model_config = ConfigDict(ser_json_inf_nan="strings")  # a loss may be anything

    number: int = Field(description="in the order of running, from 1 on")
    side: SideName
    status: Status = Field(description="ran: it was timed; whatever else it came to is a result too")
    note: str = Field("", description="why it did not run to the end, in a sentence")
    began: str = Field(description="ISO 8601")
    seconds: float = Field(description="how long it took in all")
    taken_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="of the time for which cores had work while steps were timed, what went to others on the host of a "
        "virtual machine, where most did; 0: nothing, or it is not counted",
    )
    set_aside: bool = Field(False, description="that was so much that it was run again: it does not count")
    steps: int = Field(0, description="steps that were timed, on the rank that has most")
    ended_early: bool = Field(False, description="the script ended before so many steps were timed as were asked for")
    step_ns: Figure[int] = Field(ABSENT, gt=0, description="median over ranks of each rank's mean untraced step")
    fast_step_ns: Figure[int] = Field(
        ABSENT, gt=0, description="median over ranks of the step than which a tenth of each rank's are faster"
    )
    median_step_ns: int = Field(
        0, ge=0, description="median over ranks of each rank's median untraced step, as reports have it; 0: not timed"
    )
    samples_per_step: Figure[int] = Field(ABSENT, gt=0, description="global batch")
    losses: list[float] = Field(default_factory=list, description="of the first backward passes, of the first rank")
    written_over: dict[str, str] = Field(
        default_factory=dict,
        description="the user's files and folders that changed meanwhile -> why they were not copied",
    )
    not_copied: dict[str, str] = Field(
        default_factory=dict, description="what of the user's folder the trial had no copy of -> why: the first ten"
    )
    beside: bool = Field(
        False, description="its copy also had links to the siblings of the working directory and of its parents"
    )
    without_effect: dict[str, str] = Field(default_factory=dict, description="settings not in force, with the reason")

    @property
    def in_vain(self) -> set[str]:
        """The settings that are known not to be in force."""
        return {name for name, why in self.without_effect.items() if f"{UNKNOWN}: " not in why}


def in_place(trials: Sequence[Trial]) -> list[Trial]:
    """Those that take a place in the order of A and B: none that was set aside."""
    return [trial for trial in trials if not trial.set_aside]


def pairs(trials: Sequence[Trial]) -> list[tuple[Trial, Trial]]:
    """A and B of each pair of trials that were made one after the other and both ran.

    Only they count: of a side whose trials fail often the others would be later ones, on a machine that may have
    changed. A trial that was set aside has its place taken by the next one.
    """
    found = []
    placed = in_place(trials)
    for first, second in zip(placed[::2], placed[1::2], strict=False):
        both = {trial.side: trial for trial in (first, second) if trial.status == "ran"}
        if len(both) == 2:
            found.append((both["A"], both["B"]))
    return found


PAIRED = 13  # from so many pairs on the trials of each are compared with each other, and not all of A with all of B


class Look(Model):
    """The state of the verdict after some trials: two tests are made at a few counts that were fixed before."""

    model_config = ConfigDict(allow_inf_nan=False)

    runs: int = Field(description="pairs of timed trials")
    level: float = Field(description="of each test at this look")
    p_value: float = Field(description="of mean steps: two-sided, of the exact test at this look")
    ratio: float = Field(description="B / A of mean steps, the median of what is compared (Hodges-Lehmann)")
    low_ratio: float = Field(description="its interval at that level, from")
    high_ratio: float = Field(description="to")
    fast_p_value: float = Field(description="of fast steps")
    fast_ratio: float = Field(description="B / A of fast steps")
    fast_low_ratio: float = Field(description="its interval, from")
    fast_high_ratio: float = Field(description="to")


class Learning(Figures):
    """Whether the first losses of B are those of A."""

    outcome: Literal["alike", "other", "not known"]
    reason: str = Field(description="one sentence")
    difference: Figure[float] = Field(
        ABSENT, description="largest |B - A| / |A| over passes and trials of B, A being the median over its trials"
    )
    spread: Figure[float] = Field(ABSENT, description="the same of repeats of A, without an odd one")
    allowed: Figure[float] = Field(ABSENT, description="what the numerics class of the change allows")


class Proof(Figures):
    """B against A, by running both."""

    model_config = ConfigDict(allow_inf_nan=False)

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that ran it")
    machine: str = Field(description="host, cores and device it ran on")
    a: Side
    b: Side
    advice: str = Field("", description="the rule whose advice this is; empty for other settings")
    command: str = Field("", description="what was run, where that was not what the run recorded")
    written_since: list[str] = Field(
        default_factory=list, description="code that was written after the run was recorded: A is as it is now"
    )
    objective: Literal["time per sample", "time per step"] = Field(description="what the verdict compares")
    trials: list[Trial]
    looks: list[Look]
    warmup: int = Field(description="optimizer steps that each trial lets pass")
    steps: int = Field(description="optimizer steps that each trial times at least")
    least_s: float = Field(description="seconds for which each trial times them at least")
    outcome: Literal["better", "worse", "inconclusive"] = Field(description="of B against A: better is quicker")
    decided_by: Literal["", "mean", "fast"] = Field(description="the steps that lie apart; empty: undecided")
    reason: str = Field(description="one sentence: why it is that")
    ended: Ended
    level: float = Field(description="how often sides that do not differ are called better or worse, at most")
    a_ns: Figure[float] = Field(ABSENT, description="the objective of A by mean steps, median over trials")
    b_ns: Figure[float] = Field(ABSENT, description="the objective of B")
    a_step_ns: Figure[float] = Field(ABSENT, description="step of A, median over trials")
    b_step_ns: Figure[float] = Field(ABSENT, description="step of B")
    ratio: Figure[float] = Field(ABSENT, description="B / A of mean steps, the median of what a look would compare")
    fast_ratio: Figure[float] = Field(ABSENT, description="B / A of fast steps")
    learning: Learning = Field(description="whether the change alters what is learned, as far as the first losses tell")

    @property
    def changes(self) -> dict[str, Value]:
        """What B sets otherwise than A, by the names of knobs."""
        before = self.a.settings
        return {name: value for name, value in self.b.settings.items() if before.get(name, ...) != value}

    @property
    def rewritten(self) -> list[str]:
        """That code was written after the run was recorded, in words; empty where none was."""
        if not self.written_since:
            return []
        first, *more = self.written_since
        named = f"{first} and {len(more)} more" if more else first
        return [f"{named} {'were' if more else 'was'} changed after the recording: A is the current script"]

    @property
    def pairs(self) -> int:
        """How many pairs of trials count."""
        return len(pairs(self.trials))
