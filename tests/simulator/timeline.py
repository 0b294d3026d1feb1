"""What a simulated run did, in integer nanoseconds from its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulator.actions import Work


def nanoseconds(time_us: float) -> int:
    return round(time_us * 1e3)


@dataclass(slots=True)
class HostEvent:
    """A call, operator or annotation of a thread."""

    name: str
    category: str
    thread: str
    start_ns: int
    end_ns: int
    arguments: dict[str, Any]
    external: int = 0  # External id: of the event, or of the operator around a call
    correlation: int = 0


@dataclass(slots=True)
class DeviceEvent:
    """An operation of a stream."""

    work: Work
    step: int
    correlation: int
    external: int
    start_ns: int
    end_ns: int
    transfer_ns: int = -1  # of a collective: when its last rank had arrived


@dataclass(slots=True)
class SyncRecord:
    """CUPTI's record of a wait: of a stream for an event, or of the host for a stream."""

    name: str
    stream: int
    start_ns: int
    end_ns: int
    correlation: int
    event_stream: int = -1
    event_correlation: int = -1


@dataclass
class Timeline:
    """One rank."""

    rank: int
    host: list[HostEvent] = field(default_factory=list)
    device: list[DeviceEvent] = field(default_factory=list)
    syncs: list[SyncRecord] = field(default_factory=list)
    step_starts_ns: list[int] = field(default_factory=list)  # on the host; the last is the end of the last step
    idle_from_ns: int = 0  # when the host had nothing more to do
