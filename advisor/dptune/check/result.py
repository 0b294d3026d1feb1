"""What `dptune check` checks, and its outcome."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.advice import Advice, Confidence, Impact, Skipped, Trust, Verified
from dptune.measured import Model

SCHEMA_VERSION = "0.1"

Outcome = Literal["passed", "failed", "inconclusive", "unjudgeable"]


class PassedOver(Model):
    """Advice that would have tripped the gate, and why it is not counted."""

    advice: Advice
    why: str = Field(description="one clause")


class Budget(Model):
    """A figure with an upper limit."""

    name: str = Field(description="its key in [tool.dptune.budget]")
    what: str = Field(description="the figure in words, with its unit")
    limit: float
    value: float | None = Field(description="the median over the runs; null where it could not be measured")
    why_missing: str = ""

    @property
    def kept(self) -> bool:
        """Whether it is known to be within the limit."""
        return self.value is not None and self.value <= self.limit


class Regression(Model):
    """The runs compared with those of the baseline."""

    objective: Literal["time per sample", "time per step"]
    limit_share: float = Field(description="the slowdown that is allowed")
    outcome: Literal["passed", "failed", "inconclusive", "unjudgeable"]
    fast_steps: bool = Field(False, description="whether the ratio is of the fastest steps, which decide")
    ratio: float | None = Field(None, description="time now / baseline")
    low_ratio: float | None = Field(None, description="lower end of its interval; null where no test was made")
    high_ratio: float | None = Field(None, description="upper end of its interval")
    text: str = Field(description="one sentence")


class Gate(Model):
    """The result of `dptune check`."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that wrote it")
    outcome: Outcome
    runs: list[str] = Field(description="the checked runs: path and command of each")
    baseline: list[str] = Field(default_factory=list, description="the baseline runs, as in `runs`")
    verdict: str = Field("", description="the verdict on the run, one or two sentences; empty with several runs")
    step_ns: int | None = Field(None, description="step time of the run; null if unknown, or with several runs")
    fail_on: Impact | Literal["never"] = Field(description="minimum impact of advice that trips the gate")
    least_confidence: Confidence = Field("medium", description="minimum confidence of advice that trips the gate")
    tripped: list[Advice] = Field(description="advice that trips the gate")
    passed_over: list[PassedOver] = Field(
        default_factory=list, description="advice that would trip the gate, but was accepted"
    )
    verified: list[Verified] = Field(
        default_factory=list, description="results of running the advice that trips the gate"
    )
    budgets: list[Budget] = Field(default_factory=list)
    regression: Regression | None = None
    inconclusive_fails: bool = Field(False, description="whether an inconclusive comparison with the baseline fails")
    trust: Trust = Field(description="data quality of the run with the most limitations")
    skipped: list[Skipped] = Field(default_factory=list, description="rules that could not run")
    quiet: list[str] = Field(default_factory=list, description="rules with no findings")
    below: list[str] = Field(
        default_factory=list,
        description="rules whose advice is below the minimum impact or confidence, or from a minority of the runs",
    )
    reservations: list[str] = Field(default_factory=list, description="what the outcome leaves open, a clause each")

    @property
    def baseline_fails(self) -> bool:
        """Whether being slower than the baseline, or not known to be no slower, trips the gate."""
        failing = ("failed", "inconclusive") if self.inconclusive_fails else ("failed",)
        return self.regression is not None and self.regression.outcome in failing
