"""What a rule returns and what a report holds."""

from __future__ import annotations

import re
import shlex
from math import isfinite
from typing import Literal

from pydantic import Field, computed_field, field_validator, model_validator

from dptune.errors import UsageError
from dptune.finding import Finding
from dptune.knobs import ENVIRONMENT, Value, knob
from dptune.measured import Measured, Model, Place

Kind = Literal["time", "risk", "convergence"]
Impact = Literal["low", "medium", "high"]
Confidence = Literal["low", "medium", "high"]
Basis = Literal["measured", "replayed", "sampled", "timed", "bound"]
IMPACTS: tuple[Impact, ...] = ("low", "medium", "high")
CONFIDENCES: tuple[Confidence, ...] = ("low", "medium", "high")
# What reports and files of accepted advice of schema 0.1 called impact, and its values there.
FORMER_SEVERITY: dict[str, Impact] = {"note": "low", "warning": "medium", "error": "high"}

SCHEMA_VERSION = "0.3"

LARGE_SHARE = 0.5  # of the step: a bound above it says that there is much to gain, not how much

_LINE = re.compile("[0-9]{1,9}")  # of a file: no file has more


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
    """Set a knob: what it is now, what it should become, and where."""

    knob: str
    now: Value = Field(description="the value in force; null where unset or unknown")
    then: Value
    at: Location | None = None
    snippet: str = Field("", description="code for the script, where it differs from the knob's usual lines")

    @property
    def paste(self) -> str:
        """The text to put into the script, or for a variable of the environment into the shell that starts it."""
        if self.snippet:
            return self.snippet
        then = shlex.quote(str(self.then)) if self.knob.startswith(ENVIRONMENT) else self.then
        setting = knob(self.knob)
        return setting.paste_off if setting.paste_off and self.then is False else setting.paste.format(then=then)

    @model_validator(mode="after")
    def _knob_is_registered(self) -> Change:
        try:
            knob(self.knob)
        except UsageError as unknown:
            raise ValueError(str(unknown)) from None
        for value in (self.now, self.then):
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{self.knob} cannot be {value}")
        if self.now is not None and self.now == self.then:
            raise ValueError(f"{self.knob} is {self.then} now, and is to become that: it changes nothing")
        return self


class Saving(Model):
    """What a change saves of a step at the stated global batch, as an interval.

    `bound`: the saving cannot exceed `high_ms`; how much will be saved is not known. A bound above half of the step is
    not a saving to count on: `large_unknown`. `sampled`: predicted from stack samples of steps without the profiler, in
    code that is removed or called less often. `timed`: predicted from the time measured in that code.
    """

    low_ms: float = Field(ge=0, description="milliseconds of a step, at least")
    high_ms: float = Field(ge=0, description="milliseconds of a step, at most")
    low_share: float = Field(ge=0, le=1)
    high_share: float = Field(ge=0, le=1)
    low_us_per_sample: float | None = Field(None, description="microseconds per sample; null where samples are unknown")
    high_us_per_sample: float | None = None
    mean_step_ms: float | None = Field(
        None, description="the mean step that the figures refer to if steps vary a lot; null: the step time"
    )
    global_batch: int | None = Field(None, description="samples per optimizer step this is stated at")
    samples_times: float = Field(
        1.0, description="the samples of a step with the change / without: then ms are of as many"
    )
    predicted_share: float | None = Field(None, description="the share that is predicted; null for a bound")
    unpredicted: str | None = Field(None, description="of a bound: why no prediction stands in its place")
    basis: Basis
    how: str = Field(description="one sentence: how the figures were come by")

    @computed_field(  # type: ignore[prop-decorator]
        description="a bound above half of the step: the saving may be large, is not known, and does not count"
    )
    @property
    def large_unknown(self) -> bool:
        """Whether it is a bound above half of the step, which says nothing of how much is saved."""
        return self.basis == "bound" and self.high_share > LARGE_SHARE

    @property
    def expected_share(self) -> float:
        """What the change is expected to save, for the order of advice: the middle of the interval.

        A bound above half of the step counts as one of half of it.
        """
        high = max(self.low_share, LARGE_SHARE) if self.large_unknown else self.high_share
        return (self.low_share + high) / 2

    @property
    def may_be_nothing(self) -> bool:
        """Whether it is a prediction whose interval includes zero."""
        return self.basis in ("replayed", "sampled", "timed") and self.low_share <= 0

    def without_prediction(self, why: str) -> Saving:
        """The bound, with why there is no prediction."""
        return self.model_copy(update={"unpredicted": why})

    @model_validator(mode="after")
    def _ordered(self) -> Saving:
        if self.low_ms > self.high_ms or self.low_share > self.high_share:
            raise ValueError("a saving's low is above its high")
        return self


class Evidence(Model):
    """One labelled figure behind an advice, and where to look for it."""

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
        """The same, with where to look for it; unchanged where no place is known."""
        if place is None:
            return self
        return self.model_copy(update={"rank": place.rank, "start_ns": place.start_ns, "end_ns": place.end_ns})


class Advice(Model):
    """One thing to change, why, and what it saves."""

    rule: str = Field(description="the rule's code, e.g. DP101")
    slug: str
    kind: Kind
    impact: Impact
    title: str = Field(description="one sentence with its numbers")
    why: str = Field(description="the mechanism, in one or two sentences")
    changes: list[Change]
    saves: Saving | None = Field(None, description="for kind time")
    confidence: Confidence
    evidence: list[Evidence]
    numerics: Literal["same", "changes"]
    watch: str = Field("", description="what to watch after the change, where numerics change")
    fingerprint: str = Field(description="rule and subject, no numbers: stable between runs")
    verify: str = Field("", description="the command that proves it")

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


class Skipped(Model):
    """A rule that could not be run on this run, and why."""

    rule: str
    reason: str
    set_aside: bool = Field(
        False, description="it had advice, which gives way to other advice or may save nothing by its prediction"
    )

    @classmethod
    def giving_way(cls, rule: str, reason: str) -> Skipped:
        """A rule that had advice, which gives way to other advice or may save nothing by its prediction."""
        return cls(rule=rule, reason=reason, set_aside=True)


class Trust(Model):
    """Whether the run can be judged at all. `unjudgeable` means that no advice does not mean healthy."""

    level: Literal["sound", "partial", "unjudgeable"]
    findings: list[Finding]


class Headline(Model):
    """Verdict, why, next: the top of every report."""

    label: str = Field("", description="the verdict in two or three words: Communication-bound, Straggler, Healthy")
    verdict: str
    cause: str = Field("", description="what makes the straggler late; empty where no rank heads the report")
    why: str
    next: str
    rule: str = Field("", description="the rule whose advice `next` gives; empty where it gives none")


class RunSummary(Model):
    """What was read."""

    sources: list[str]
    command: str | None = Field(None, description="the recorded command, secrets redacted; null for foreign traces")
    recorded: str | None = Field(None, description="ISO 8601; null for foreign traces")
    how_it_ended: str | None = None
    torch: str | None = None
    commit: str | None = Field(None, description="git commit of the script, + if files differ from it; null: not known")
    settings: list[str] = Field(
        default_factory=list, description="what was set from outside, and of each that did not take effect, why"
    )
    rank_basis: str = Field("", description="where the rank numbers come from")

    @property
    def subject(self) -> str:
        """Where the run lies, and the command that was recorded."""
        first = self.sources[0] if self.sources else "nothing was read"
        more = f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else ""
        return f"{first}{more}" + (f" ({self.command})" if self.command else "")


class Together(Model):
    """What several pieces of advice save together, predicted as one set of changes."""

    rules: list[str] = Field(description="their codes, in the order of the report")
    numerics: Literal["same", "changes"] = Field(description="whether what is learned stays as it is")
    saves: Saving


class Verified(Model):
    """A change that was run beside the script as it is, by `dptune verify`."""

    name: str = Field(description="what was set")
    advice: str = Field("", description="the rule whose advice it was; empty for other settings")
    changes: dict[str, Value] = Field(description="by the names of knobs")
    outcome: Literal["better", "worse", "inconclusive"] = Field(description="of the change: better is quicker")
    reason: str = Field(description="one sentence: why it is that")
    objective: Literal["time per sample", "time per step"] = Field(description="what was compared")
    fast_steps: bool = Field(False, description="whether the figures are of fast steps, not of mean steps")
    ratio: float | None = Field(description="with the change / without; null where too few trials ran")
    low_ratio: float | None = Field(description="its interval, from; null where so few trials have none")
    high_ratio: float | None = Field(description="to")
    before_ns: int | None = Field(None, description="a step without the change, the middle one of the trials")
    trials: int = Field(description="on each side, at least")
    learning: str = Field(description="one sentence: whether the first losses are the same")
    learns: Literal["alike", "other", "not known"] = Field("not known", description="the same in a word")
    command: str = Field("", description="what was run, where that was not what the run recorded")
    warnings: list[str] = Field(default_factory=list, description="trials that failed, settings not in force")


class Report(Model):
    """Everything dptune says about a run."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that wrote it")
    run: RunSummary
    headline: Headline
    trust: Trust
    advice: list[Advice] = Field(description="ranked within each kind, low confidence after everything else")
    together: list[Together] = Field(
        default_factory=list, description="all predicted advice that leaves learning as it is, and the first three"
    )
    skipped: list[Skipped]
    quiet: list[str] = Field(description="rules that ran and had nothing to say")
    measured: Measured
    verified: list[Verified] = Field(default_factory=list, description="changes that were run, the latest last")
