"""Cards as the engine sees them: streams, what lies in their queues, and what runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulator.actions import Work
from tests.simulator.timeline import DeviceEvent


@dataclass(slots=True)
class CudaEvent:
    """A CUDA event, recorded once."""

    stream: int
    correlation: int
    fired: bool = False
    waiting: list[Stream] | None = None


@dataclass(slots=True)
class Item:
    """What lies in the queue of a stream: an operation, an event to record, or one to wait for."""

    work: Work | None = None
    recorded: CudaEvent | None = None
    awaited: CudaEvent | None = None
    step: int = 0
    correlation: int = 0
    external: int = 0
    duration_us: float = 0.0
    earliest_us: float = -1e18  # of an operation: its launch and the latency after it


class Stream:
    """A FIFO stream of a device."""

    __slots__ = ("device", "free_us", "number", "on_empty", "on_room", "pending", "queue", "running", "woken_us")

    def __init__(self, device: Device, number: int) -> None:
        self.device = device
        self.number = number
        self.queue: deque[Item] = deque()
        self.pending = 0  # operations launched and not started
        self.free_us = -1e18  # earliest start of the next operation
        self.running: Running | None = None
        self.on_room: Callable[[], None] | None = None  # the host, blocked at a full queue
        self.on_empty: Callable[[], None] | None = None  # the host, blocked until all is done
        self.woken_us = -1.0

    @property
    def empty(self) -> bool:
        """Whether all that was asked of it is done."""
        return self.running is None and not self.queue


class Running:
    """An operation that runs."""

    __slots__ = ("collective", "event", "left_us", "since_us", "speed", "stream", "version")

    def __init__(self, stream: Stream, event: DeviceEvent, left_us: float, since_us: float) -> None:
        self.stream = stream
        self.event = event
        self.left_us = left_us
        self.since_us = since_us
        self.speed = 0.0
        self.version = 0
        self.collective: Collective | None = None


class Device:
    """A card: what runs on it now."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.streams: dict[int, Stream] = {}
        self.compute: list[Running] = []
        self.waiting = 0  # collectives that wait for other ranks
        self.transferring: list[Collective] = []

    def stream(self, number: int) -> Stream:
        if number not in self.streams:
            self.streams[number] = Stream(self, number)
        return self.streams[number]


class Collective:
    """One collective of all ranks."""

    __slots__ = ("left_us", "members", "since_us", "slowed_by", "speed", "version")

    def __init__(self) -> None:
        self.members: list[Running] = []
        self.left_us = 0.0
        self.since_us = 0.0
        self.speed = 0.0
        self.slowed_by = 0  # members whose device computes
        self.version = 0
