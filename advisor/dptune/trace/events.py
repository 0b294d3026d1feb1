"""A trace that was read: its columns, and what the file says about itself."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np

from dptune.finding import Finding
from dptune.trace.columns import NO_OPERATORS, Collectives, Columns, Counters, Ints, Memory, Operators

_Table = TypeVar("_Table", Columns, Collectives, Memory, Counters, "Blocks")


@dataclass(frozen=True)
class Device:
    """A device that the file lists. `name` is "" in some; `compute_major` is None off NVIDIA."""

    index: int
    name: str
    compute_major: int | None = None
    compute_minor: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class ProcessGroup:
    """A process group that the file lists. `ranks` are those of the run, ascending; empty where it does not say."""

    size: int
    description: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Distributed:
    """What the file says about ranks; each part may be missing. `groups` are by name."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: dict[str, ProcessGroup] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Where events lie in the text, for reading what is no column: int64, one row a block of neighbouring events.

    `begin` and `end` are bytes of the text (unpacked, UTF-8, without a byte order mark), `position` is the index in
    `traceEvents` of the first event.
    """

    begin: Ints
    end: Ints
    position: Ints


@dataclass(frozen=True, eq=False)
class Trace:
    """One trace file. `events` is the length of `traceEvents`; `partial` where the file broke off, "" if whole.

    `base_ns` is what times count from, in nanoseconds since the epoch; 0 where they count from the epoch itself.
    `thread_names` is by (pid, tid). `findings` are oddities of the file that limit what can be said of it.
    `head_of_ns` is set where the events were dropped: from the start of the first to the end of the last. `operators`
    is empty unless they were kept as the file was read.
    """

    path: str
    events: int
    columns: Columns
    collectives: Collectives
    memory: Memory
    counters: Counters
    blocks: Blocks
    partial: str = ""
    devices: tuple[Device, ...] = ()
    distributed: Distributed = field(default_factory=Distributed)
    base_ns: int = 0
    host: str = ""
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    head_of_ns: tuple[int, int] | None = None
    operators: Operators = NO_OPERATORS

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From the start of the first event to the end of the last; None without events."""
        if not len(self.columns):
            return self.head_of_ns
        return int(self.columns.ts_ns.min()), int(self.columns.end_ns.max())

    def head(self) -> Trace:
        """The trace without its events: what the file says about itself, in a few kilobytes."""
        return replace(
            self,
            columns=_emptied(self.columns),
            collectives=_emptied(self.collectives),
            memory=_emptied(self.memory),
            counters=_emptied(self.counters),
            blocks=_emptied(self.blocks),
            thread_names={},
            head_of_ns=self.span_ns,
            operators=NO_OPERATORS,
        )


def _emptied(table: _Table) -> _Table:
    """A table of the same kind without rows, which keeps nothing of the given one alive."""
    rows: dict[str, Any] = {}
    for column in fields(table):
        values = getattr(table, column.name)
        rows[column.name] = () if isinstance(values, tuple) else np.empty(0, values.dtype)
    return type(table)(**rows)
