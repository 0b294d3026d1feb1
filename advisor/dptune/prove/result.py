"""The result of running a change: the trials of both sides, and the verdict on them.

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

    name: str = Field(description="in words: `unchanged`, or the settings")
    settings: dict[str, Value] = Field(default_factory=dict, description="values by knob name")
    command: list[str] = Field(default_factory=list, description="the command that was started, secrets redacted")
    directory: str = Field("", description="its working directory, before it was copied for the trials")
    code: str = Field("", description="digest of the code in that directory, of torch's version and of the environment")
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
    status: Status = Field(description="ran: it was timed; every other status is a result, too")
    note: str = Field("", description="one sentence: why it did not complete")
    began: str = Field(description="ISO 8601")
    seconds: float = Field(description="total duration")
    taken_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="CPU steal time of a virtual machine: share of the time in which cores had work while steps were "
        "timed, on the rank where it is largest; 0: none, or not counted",
    )
    set_aside: bool = Field(
        False, description="whether this share was so large that the trial was repeated: it does not count"
    )
    steps: int = Field(0, description="timed steps, on the rank with most")
    ended_early: bool = Field(False, description="the script ended before the requested number of steps was timed")
    step_ns: Figure[int] = Field(ABSENT, gt=0, description="median over ranks of each rank's mean untraced step")
    fast_step_ns: Figure[int] = Field(
        ABSENT, gt=0, description="median over ranks of each rank's fast step: a tenth of its untraced steps are faster"
    )
    median_step_ns: int = Field(
        0, ge=0, description="median over ranks of each rank's median untraced step, as in reports; 0: not timed"
    )
    samples_per_step: Figure[int] = Field(ABSENT, gt=0, description="global batch")
    losses: list[float] = Field(
        default_factory=list, description="losses of the first backward passes, on the first rank"
    )
    written_over: dict[str, str] = Field(
        default_factory=dict,
        description="files and folders of the user that changed during the trial -> why they were not copied",
    )
    not_copied: dict[str, str] = Field(
        default_factory=dict,
        description="parts of the user's folder that the trial had no copy of -> why; the first ten",
    )
    beside: bool = Field(
        False, description="whether its copy also had links to the siblings of the working directory and of its parents"
    )
    without_effect: dict[str, str] = Field(default_factory=dict, description="settings that did not take effect -> why")
    has_change: list[str] = Field(
        default_factory=list, description="side A: settings of the change that the script there has already"
    )

    @property
    def in_vain(self) -> set[str]:
        """The settings that are known not to have taken effect."""
        return {name for name, why in self.without_effect.items() if f"{UNKNOWN}: " not in why}


def in_place(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that count in the order of A and B: all that were not set aside."""
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


PAIRED = 13  # from this number of pairs on, trials are compared within their pair, and not all of A with all of B


class Look(Model):
    """The state of the verdict after some trials: two tests at each of a few counts that are fixed in advance."""

    model_config = ConfigDict(allow_inf_nan=False)

    runs: int = Field(description="pairs of timed trials")
    level: float = Field(description="significance level of each test at this look")
    p_value: float = Field(description="mean steps: two-sided p-value of the exact test at this look")
    ratio: float = Field(description="B / A of mean steps: median of the compared ratios (Hodges-Lehmann)")
    low_ratio: float = Field(description="lower end of its interval at that level")
    high_ratio: float = Field(description="upper end of its interval")
    fast_p_value: float = Field(description="the same p-value for fast steps")
    fast_ratio: float = Field(description="B / A of fast steps")
    fast_low_ratio: float = Field(description="lower end of its interval")
    fast_high_ratio: float = Field(description="upper end of its interval")


class Learning(Figures):
    """Whether the first losses of B equal those of A."""

    outcome: Literal["alike", "other", "not known"]
    reason: str = Field(description="one sentence")
    difference: Figure[float] = Field(
        ABSENT, description="largest |B - A| / |A| over passes and trials of B, A being the median over its trials"
    )
    spread: Figure[float] = Field(ABSENT, description="the same for repeats of A, without an outlier")
    allowed: Figure[float] = Field(
        ABSENT, description="largest difference that counts as the same results; it depends on the change"
    )


class Proof(Figures):
    """B compared with A by running both."""

    model_config = ConfigDict(allow_inf_nan=False)

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that ran it")
    machine: str = Field(description="host, cores and device it ran on")
    a: Side
    b: Side
    advice: str = Field("", description="the rule that recommended it; empty for other settings")
    command: str = Field("", description="the command that was run, if it differs from the recorded one")
    written_since: list[str] = Field(
        default_factory=list, description="code that changed after the recording: A is the current code"
    )
    objective: Literal["time per sample", "time per step"] = Field(description="what the verdict compares")
    trials: list[Trial]
    looks: list[Look]
    warmup: int = Field(description="optimizer steps of each trial before timing")
    steps: int = Field(description="least number of optimizer steps that each trial times")
    least_s: float = Field(description="least number of seconds for which each trial times them")
    outcome: Literal["better", "worse", "inconclusive"] = Field(description="of B against A: better means faster")
    decided_by: Literal["", "mean", "fast"] = Field(description="the steps that differ significantly; empty: undecided")
    reason: str = Field(description="one sentence: why this outcome")
    ended: Ended
    level: float = Field(
        description="significance level: upper bound of how often sides that do not differ are called better or worse"
    )
    a_ns: Figure[float] = Field(ABSENT, description="the objective of A by mean steps, median over trials")
    b_ns: Figure[float] = Field(ABSENT, description="the objective of B")
    a_step_ns: Figure[float] = Field(ABSENT, description="step of A, median over trials")
    b_step_ns: Figure[float] = Field(ABSENT, description="step of B")
    ratio: Figure[float] = Field(ABSENT, description="B / A of mean steps: median of the ratios that a look compares")
    fast_ratio: Figure[float] = Field(ABSENT, description="B / A of fast steps")
    learning: Learning = Field(description="whether the change affects training results, judged by the first losses")

    @property
    def changes(self) -> dict[str, Value]:
        """The settings of B that differ from A, by knob name."""
        before = self.a.settings
        return {name: value for name, value in self.b.settings.items() if before.get(name, ...) != value}

    @property
    def rewritten(self) -> list[str]:
        """Which code changed after the recording, in words; empty where none did."""
        if not self.written_since:
            return []
        first, *more = self.written_since
        named = f"{first} and {len(more)} more" if more else first
        return [f"{named} {'were' if more else 'was'} changed after the recording: A is the current script"]

    @property
    def pairs(self) -> int:
        """How many pairs of trials count."""
        return len(pairs(self.trials))
