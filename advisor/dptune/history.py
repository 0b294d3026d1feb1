"""Recordings one after another: step time, throughput and verdict of each, as `dptune history` prints them."""

from __future__ import annotations

from pydantic import Field

from dptune.advice import Report
from dptune.measured import Model

SCHEMA_VERSION = "0.1"


class Entry(Model):
    """One recording. Figures are null where it could not be read, or has none."""

    folder: str
    recorded: str = Field(description="ISO 8601; empty where not known")
    command: str = ""
    commit: str = Field("", description="git commit of the script, + if files differ from it; empty: not known")
    ranks: int | None = None
    step_ns: int | None = Field(None, description="the step time of its report")
    q1_ns: int | None = Field(None, description="lower quartile of its untraced steps")
    q3_ns: int | None = Field(None, description="upper quartile of its untraced steps")
    traced: bool = Field(False, description="whether the step time includes profiler overhead")
    samples_per_s: float | None = Field(None, description="samples of all ranks per second")
    label: str = Field("", description="the verdict in two or three words")
    findings: list[str] = Field(default_factory=list, description="rules of its recommendations, as ranked")
    error: str = Field("", description="why it could not be read; empty where it could")

    @classmethod
    def of(cls, folder: str, report: Report) -> Entry:
        """The entry of a report."""
        measured, step = report.measured, report.measured.step
        step_ns = step.known("time_ns")
        samples = None if measured.samples_inferred else measured.known("samples_per_step")
        return cls(
            folder=folder,
            recorded=report.run.recorded or "",
            command=report.run.command or "",
            commit=report.run.commit or "",
            ranks=measured.known("world_size") or len(measured.ranks),
            step_ns=step_ns,
            q1_ns=step.known("untraced_q1_ns"),
            q3_ns=step.known("untraced_q3_ns"),
            traced=step.basis == "traced",
            samples_per_s=samples / step_ns * 1e9 if samples and step_ns else None,
            label=report.headline.label,
            findings=[advice.rule for advice in report.advice],
        )


class History(Model):
    """Recordings, the oldest first."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = Field(description="version of dptune that wrote it")
    entries: list[Entry]
    earlier: int = Field(0, description="older recordings that are not listed")
