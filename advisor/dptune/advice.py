"""What a rule returns and what a report holds."""

from __future__ import annotations

import re
import shlex
from math import isfinite
from pathlib import PurePath
from typing import Literal

from pydantic import Field, field_validator, model_validator

from dptune.errors import UsageError
from dptune.finding import Finding
from dptune.knobs import ENVIRONMENT, Value, of_change
from dptune.measured import ABSENT, Figure, Figures, Measured, Model, Place
from dptune.saving import Basis as Basis
from dptune.saving import Saving as Saving

Kind = Literal["time", "risk", "convergence"]
Needs = Literal["", "recording"]
Impact = Literal["low", "medium", "high"]
Confidence = Literal["low", "medium", "high"]
IMPACTS: tuple[Impact, ...] = ("low", "medium", "high")
CONFIDENCES: tuple[Confidence, ...] = ("low", "medium", "high")
# What reports and files of accepted advice of schema 0.1 called impact, and its values there.
FORMER_SEVERITY: dict[str, Impact] = {"note": "low", "warning": "medium", "error": "high"}

SCHEMA_VERSION = "0.3"

_LINE = re.compile("[0-9]{1,9}")  # of a file: no file has more
_PLACE = re.compile(r"(?<![\w/\\.~-])[\w/\\.~-]{1,255}\.py:[0-9]{1,9}(?![0-9])")


def impact_of(share: float) -> Impact | None:
    """Impact of something that a step pays `share` of its time for: high >= 15 %, medium >= 5 %, low >= 2 %."""
    if share >= 0.15:
        return "high"
    if share >= 0.05:
        return "medium"
    if share >= 0.02:
        return "low"
    return None


class Location(Model):
    """A line of the user's code."""

    file: str
    line: int

    @classmethod
    def parse(cls, where: str | None) -> Location | None:
        """From `file:line`, as facts hold it; None where there is none."""
        file, _, line = (where or "").rpartition(":")
        return cls(file=file, line=int(line)) if file and _LINE.fullmatch(line) else None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Change(Model):
    """A knob to set: its current value, the proposed value, and the line."""

    knob: str
    now: Value = Field(description="the current value; null if unset or unknown")
    then: Value
    at: Location | None = None
    snippet: str = Field("", description="code for the script, where it differs from the knob's usual lines")
    block: str = Field("", description="class of the model's blocks, where the change is about them")

    @property
    def paste(self) -> str:
        """The text to put into the script, or for a variable of the environment into the shell that starts it."""
        if self.snippet:
            return self.snippet
        then = shlex.quote(str(self.then)) if self.knob.startswith(ENVIRONMENT) else self.then
        setting = of_change(self.knob)
        if setting.paste_off and self.then is False:
            return setting.paste_off
        return setting.paste.format(then=setting.pasted.get(str(then), then))

    @model_validator(mode="after")
    def _knob_is_registered(self) -> Change:
        try:
            of_change(self.knob)
        except UsageError as unknown:
            raise ValueError(str(unknown)) from None
        for value in (self.now, self.then):
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{self.knob} cannot be {value}")
        if self.now is not None and self.now == self.then:
            raise ValueError(f"{self.knob} is {self.then} now, and is to become that: it changes nothing")
        return self


class Evidence(Model):
    """One labelled figure that supports advice, and its place in the trace."""

    label: str
    value: float | int | str
    unit: str = ""
    rank: int | None = None
    start_ns: int | None = Field(None, description="on that rank's trace clock")
    end_ns: int | None = None

    @field_validator("value")
    @classmethod
    def _in_words_where_json_has_none(cls, value: float | int | str) -> float | int | str:
        return str(value) if isinstance(value, float) and not isfinite(value) else value

    def at(self, place: Place | None) -> Evidence:
        """The same, with its place in the trace; unchanged where no place is known."""
        if place is None:
            return self
        return self.model_copy(update={"rank": place.rank, "start_ns": place.start_ns, "end_ns": place.end_ns})


class Advice(Model):
    """One recommendation: what to change, why, and what it saves."""

    rule: str = Field(description="the rule's code, e.g. DP101")
    slug: str
    kind: Kind
    impact: Impact
    title: str = Field(description="one sentence with its numbers")
    why: str = Field(description="the mechanism, in one or two sentences")
    changes: list[Change]
    remedy: str = Field("", description="what to change in the script if it is not a setting: one or two sentences")
    remedy_first: bool = Field(False, description="whether the remedy comes before the settings in changes")
    saves: Saving | None = Field(None, description="for kind time")
    confidence: Confidence
    evidence: list[Evidence]
    numerics: Literal["same", "changes"]
    watch: str = Field("", description="what to watch after the change, where training results may change")
    fingerprint: str = Field(description="rule and subject, no numbers: stable between runs")
    verify: str = Field("", description="the command that verifies it")

    @property
    def place(self) -> Location | None:
        """The line of the script: that of the first change, else the first one that the title or the evidence names.

        A remedy that comes before the changes is for the line in the title.
        """
        of_change = next((change.at for change in self.changes if change.at and not self.remedy_first), None)
        named = _PLACE.search(" ".join([self.title, *(f"{each.label} {each.value}" for each in self.evidence)]))
        return of_change or Location.parse(named[0] if named else None)

    @property
    def threatens_results(self) -> bool:
        """Whether it is certain that the run trains another model than intended."""
        return (self.kind, self.impact, self.confidence) == ("risk", "high", "high") and self.numerics == "changes"

    @model_validator(mode="before")
    @classmethod
    def _severity_was_impact(cls, data: object) -> object:
        if isinstance(data, dict) and "impact" not in data:
            former = data.get("severity")
            if isinstance(former, str) and former in FORMER_SEVERITY:
                rest = {name: value for name, value in data.items() if name != "severity"}
                return {**rest, "impact": FORMER_SEVERITY[former]}
        return data

    @model_validator(mode="after")
    def _time_has_a_saving(self) -> Advice:
        if self.kind == "time" and self.saves is None:
            raise ValueError("advice of kind time states what it saves")
        return self


NEEDS_RECORDING = "needs a recording by `dptune profile`"


class Skipped(Model):
    """A rule that could not be run on this run, and why."""

    rule: str
    reason: str
    set_aside: bool = Field(
        False,
        description="it had advice that was superseded by other advice, or that may save nothing according to its "
        "prediction",
    )
    needs: Needs = Field(
        "", description="recording: it judges objects of the live process, which only `dptune profile` records"
    )

    @property
    def needs_recording(self) -> bool:
        """Whether only a recording by `dptune profile` could answer it: always (`needs`), or of this trace."""
        return bool(self.needs) or self.reason == NEEDS_RECORDING

    @property
    def could_not_run(self) -> bool:
        """Whether the trace lacks data that other traces hold."""
        return not self.set_aside and not self.needs_recording

    @classmethod
    def giving_way(cls, rule: str, reason: str) -> Skipped:
        """A rule whose advice was superseded by other advice, or may save nothing according to its prediction."""
        return cls(rule=rule, reason=reason, set_aside=True)


class Trust(Model):
    """Data quality: whether the run can be judged. If `unjudgeable`, no advice does not mean a healthy run."""

    level: Literal["sound", "partial", "unjudgeable"]
    findings: list[Finding]


class Headline(Model):
    """Verdict, reason and next action: the top of every report."""

    label: str = Field("", description="the verdict in two or three words: Communication-bound, Straggler, Healthy")
    verdict: str
    cause: str = Field("", description="what makes the straggler late; empty if the verdict names no straggler")
    why: str
    next: str
    rule: str = Field("", description="the rule whose advice `next` gives; empty where it gives none")


class RunSummary(Model):
    """The run, and the files that were read."""

    sources: list[str]
    command: str | None = Field(None, description="the recorded command, secrets redacted; null for foreign traces")
    recorded: str | None = Field(None, description="ISO 8601; null for foreign traces")
    how_it_ended: str | None = None
    torch: str | None = None
    commit: str | None = Field(None, description="git commit of the script, + if files differ from it; null: not known")
    settings: list[str] = Field(
        default_factory=list, description="settings changed from outside; for each that did not take effect, why"
    )
    rank_basis: str = Field("", description="where the rank numbers come from")

    @property
    def subject(self) -> str:
        """The path of the run, and the recorded command."""
        first = self.sources[0] if self.sources else "nothing was read"
        folders = {str(PurePath(source).parent) for source in self.sources}
        if len(self.sources) > 1:
            alike = len(folders) == 1 and "://" not in first
            first = (
                f"{folders.pop()}, {len(self.sources)} files" if alike else f"{first} and {len(self.sources) - 1} more"
            )
        return first + (f" ({self.command})" if self.command else "")


class Together(Model):
    """The combined saving of several recommendations, predicted as one set of changes."""

    rules: list[str] = Field(description="their codes, in the order of the report")
    numerics: Literal["same", "changes"] = Field(
        description="whether training results stay the same, up to rounding, or may change"
    )
    saves: Saving


class Verified(Model):
    """A change that `dptune verify` ran and compared with the unchanged script."""

    name: str = Field(description="the changed settings")
    advice: str = Field("", description="the rule that recommended it; empty for other settings")
    changes: dict[str, Value] = Field(description="values by knob name")
    outcome: Literal["better", "worse", "inconclusive"] = Field(description="of the change: better means faster")
    reason: str = Field(description="one sentence: why this outcome")
    objective: Literal["time per sample", "time per step"] = Field(description="the time that was compared")
    fast_steps: bool = Field(False, description="whether the figures refer to fast steps instead of mean steps")
    ratio: float | None = Field(description="with the change / without; null where too few trials ran")
    low_ratio: float | None = Field(description="lower end of its interval; null with too few trials for one")
    high_ratio: float | None = Field(description="upper end of its interval")
    before_ns: int | None = Field(None, description="step time without the change, median over the trials")
    trials: int = Field(description="trials per side, at least")
    learning: str = Field(description="one sentence: whether the first losses are the same")
    learns: Literal["alike", "other", "not known"] = Field("not known", description="the same in one word")
    command: str = Field("", description="the command that was run, if it differs from the recorded one")
    warnings: list[str] = Field(
        default_factory=list, description="failed trials, and settings that did not take effect"
    )


class CostSaving(Model):
    """Saving of one recommendation in the cost of 1,000 steps, for the same number of samples."""

    rule: str = Field(description="the rule's code")
    low: float = Field(description="lower end of the interval")
    high: float = Field(description="upper end of the interval")
    large_unknown: bool = Field(description="whether the saving may be large and is not known")


class Cost(Figures):
    """Cost of the steps at a price per device and hour, and savings of recommendations; these do not add up."""

    gpu_hour_price: float = Field(description="price of one device for an hour, in the currency of the user")
    devices: Figure[int] = Field(ABSENT, description="devices that are paid for")
    devices_between: list[int] = Field(
        default_factory=list,
        description="fewest and most devices that the run may have, if ranks may share a GPU; else empty",
    )
    per_1000_steps: Figure[float] = Field(ABSENT, description="cost of 1,000 steps on all devices")
    per_1000_steps_between: list[float] = Field(
        default_factory=list, description="cost of 1,000 steps on the fewest and the most devices; else empty"
    )
    savings: list[CostSaving] = Field(default_factory=list, description="one for each recommendation that saves time")


class Report(Model):
    """The report on a run."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that wrote it")
    run: RunSummary
    headline: Headline
    trust: Trust
    advice: list[Advice] = Field(description="ranked within each kind, low confidence after everything else")
    together: list[Together] = Field(
        default_factory=list,
        description="all predicted advice that leaves training results unchanged, and the first three",
    )
    skipped: list[Skipped]
    quiet: list[str] = Field(description="rules with no findings")
    measured: Measured
    verified: list[Verified] = Field(default_factory=list, description="changes that were verified, the latest last")
    cost: Cost | None = Field(None, description="where a price was given")
