"""What a search came to. Units are in the names, as in `dptune.measured`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.advice import Verified
from dptune.knobs import Value
from dptune.measured import Model

SCHEMA_VERSION = "0.1"

Outcome = Literal["faster", "not confirmed", "results differ", "not compared", "nothing kept"]


class Tried(Model):
    """One candidate in one race, on top of the changes that were kept before it."""

    name: str
    rule: str = Field("", description="the rule that recommends it; empty for other settings")
    title: str
    settings: dict[str, Value]
    numerics: Literal["same", "changes"]
    basis: str = Field(description="basis of the prediction: replayed, bound, ...; empty: not predicted")
    predicted_low_share: float = Field(description="predicted saving of the original time per sample, lower end")
    predicted_high_share: float = Field(description="upper end")
    stack: list[str] = Field(description="kept changes that it was raced on top of")
    rounds: int = Field(description="trials of it, and of the stack")
    gain_share: float | None = Field(description="measured saving of the stack's time; null where no trial ran")
    low_ratio: float | None = Field(description="time with it / without it: lower end of its 99.8 % interval")
    high_ratio: float | None = Field(description="upper end; null where there were too few rounds")
    result: Literal["kept", "dropped", "undecided"]
    reason: str = Field(description="why it was dropped; empty if it was kept, or another one won the race")


class NotTried(Model):
    """A change that was not raced, or not to the end."""

    name: str
    title: str
    reason: str


class Planned(Model):
    """A candidate, before it is raced."""

    name: str
    title: str
    settings: dict[str, Value]
    numerics: Literal["same", "changes"]
    basis: str = Field(description="basis of the prediction; empty: not predicted")
    predicted_low_share: float = Field(description="predicted saving of the time per sample, lower end")
    predicted_high_share: float = Field(description="upper end")
    rounds: int = Field(description="rounds that are likely to show that saving")
    seconds: float = Field(description="time of its trials in these rounds")


class Plan(Model):
    """What `--dry-run` prints: candidates in the order in which they are raced."""

    schema_version: str = SCHEMA_VERSION
    trial_s: float = Field(description="estimated time of one trial")
    candidates: list[Planned]
    not_tried: list[NotTried] = Field(default_factory=list)


class Tuning(Model):
    """The search, and the comparison of its stack with the original by new trials."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that searched")
    machine: str = Field(description="host, cores and device it ran on")
    run: str = Field(description="the recording")
    command: list[str] = Field(description="the command of the script, secrets redacted")
    directory: str
    numerics: Literal["same", "may-change"] = Field(description="which changes were allowed")
    time_limit_s: float
    seconds: float = Field(description="time of all trials, those of earlier calls included")
    ended: Literal["complete", "out of time", "error budget used", "cannot run", "interrupted"]
    outcome: Outcome = Field(description="of the kept changes against the original")
    reason: str = Field(description="one sentence")
    kept: list[str] = Field(description="names of the kept changes, in the order they were kept")
    settings: dict[str, Value] = Field(description="values of the kept changes by knob name")
    level: float = Field(description="upper bound of the chance that any kept change has no effect")
    level_spent: float = Field(description="the part of it that the search used")
    final: Verified | None = Field(
        description="kept changes against the original in new processes: the only saving to quote"
    )
    tried: list[Tried]
    not_tried: list[NotTried]
    patched: list[str] = Field(description="files that the patch changes, below the directory")
    patch: str = Field("", description="path of the patch; empty where there is none")
    environment: dict[str, str] = Field(default_factory=dict, description="variables to set for the command")
    by_hand: list[str] = Field(default_factory=list, description="lines to add to the script that no patch makes")
    apply: str = Field("", description="the command that applies the patch")
    start: str = Field("", description="the command that starts the script with the variables")
    resume: str = Field("", description="the command that continues the search; a longer --time-limit may be added")
