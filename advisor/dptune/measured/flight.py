"""What dumps of the flight recorder show: who hangs, which calls do not match, how long calls take."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import Model

SCHEMA_VERSION = "0.1"
Difference = Literal["kind", "sizes", "types"]


class StuckCollective(Model):
    """The first collective of a process group, or send and receive of two ranks, that is not over on every rank."""

    group: str
    description: str = Field(description="what the script or library calls the group")
    sequence: int = Field(description="number in its group, from 1; of a send or receive on the rank that waits")
    kind: str = Field(description="all_reduce, ..., 'send to rank 1' or 'receive from rank 0'")
    message_bytes: int | None = None
    reached: list[int] = Field(description="ranks that called it")
    missing: list[int] = Field(description="ranks of the group, with a dump, that have not called it")
    without_dump: list[int] = Field(description="ranks of the group of which no dump was given")
    not_started: list[int] = Field(description="ranks that called it where it has not started, as far as recorded")
    done: list[int] = Field(description="ranks on which it is over")
    at: str = Field("", description="the line of the script that called it, where recorded")


class Culprit(Model):
    """A rank that others wait for, and that waits in no collective itself."""

    rank: int
    dumped: bool = Field(description="whether there is a dump of it; if not, it may have died")
    holds_up: list[int] = Field(description="ranks that wait for it, directly or through others")
    last_call: str = Field("", description="its last call, with its number and group")
    at: str = Field("", description="line of the script of its last call, where recorded")


class Mismatch(Model):
    """Calls of one number in one group that differ between ranks."""

    group: str
    description: str
    sequence: int
    what: Difference
    values: dict[str, list[int]] = Field(description="what was called, and by which ranks")


class FlightCalls(Model):
    """Collectives of one kind, group and size."""

    kind: str
    group: str
    description: str
    message_bytes: int | None
    ranks: int
    calls: int = Field(description="calls per rank, the most of any rank")
    duration_ms: float | None = Field(None, description="median over calls of the shortest duration over ranks")
    longest_ms: float | None = Field(None, description="longest duration of any call on any rank")


class FlightFigures(Model):
    """The dumps of one job."""

    schema_version: str = SCHEMA_VERSION
    ranks: list[int] = Field(description="ranks with a dump")
    without_dump: list[int] = Field(default_factory=list, description="ranks of the groups without a dump")
    entries: int = Field(description="calls in all dumps")
    stuck: list[StuckCollective] = Field(default_factory=list)
    culprits: list[Culprit] = Field(default_factory=list)
    mismatches: list[Mismatch] = Field(default_factory=list)
    calls: list[FlightCalls] = Field(default_factory=list, description="the longest in all first")
    traced: int | None = Field(None, description="calls that are also in the given traces, over all ranks")
    findings: list[str] = Field(default_factory=list, description="what limits the reading")
