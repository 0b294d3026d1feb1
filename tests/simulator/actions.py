"""What a host does in a step, in order: the language between a training loop and the engine.

Every action that the engine draws noise for has a site, its place in the step: two simulations draw the same noise for
the same site, step and rank, so that a step with a change differs from the same step without it by the change alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

COMPUTE, COPY, MEMSET, COLLECTIVE = "compute", "copy", "memset", "collective"


def site_hash(site: str) -> int:
    return zlib.crc32(site.encode())


@dataclass(slots=True)
class Begin:
    """A host event begins: an operator, an annotation."""

    name: str
    category: str
    cost_us: float
    site: int
    arguments: dict[str, Any]


@dataclass(slots=True)
class End:
    """The innermost host event ends."""

    cost_us: float


@dataclass(slots=True)
class Busy:
    """Host work without an event: Python, or sleep."""

    cost_us: float
    site: int
    sleeps: bool = False
    rotates: int = 0  # only in the steps of this rank, of so many ranks that take turns
    spread: float = 0.0  # of a sleep: standard deviation of its logarithm


@dataclass(slots=True)
class Thread:
    """What follows is in that thread: `main` or `autograd`."""

    name: str


@dataclass(slots=True)
class Work:
    """An operation of a device."""

    kind: str
    name: str
    stream: int
    duration_us: float  # alone on the device; of a collective: of its transfer
    site: int
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    copied_bytes: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Launch:
    """A call of the runtime that launches an operation."""

    work: Work
    call: str = "cudaLaunchKernel"


@dataclass(slots=True)
class Record:
    """Record an event on a stream."""

    event: str
    stream: int


@dataclass(slots=True)
class Wait:
    """What is launched on the stream from now on waits for the event."""

    event: str
    stream: int


@dataclass(slots=True)
class Graph:
    """One call that launches all operations, events and waits of a CUDA graph."""

    actions: list[Launch | Record | Wait]
    site: int


@dataclass(slots=True)
class Synchronize:
    """The host waits until the stream is empty."""

    stream: int


@dataclass(slots=True)
class NextBatch:
    """The host waits for the next batch of the loader's workers, or prepares it."""

    decode_us: float
    workers: int
    prefetch: int
    site: int


Action = Begin | End | Busy | Thread | Launch | Graph | Record | Wait | Synchronize | NextBatch


class Script:
    """Collects the actions of a step of a rank."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._places: list[str] = []
        self._uses: dict[str, int] = {}

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        """A part of the model or step: part of the sites within."""
        self._places.append(name)
        yield
        self._places.pop()

    def site(self, name: str) -> int:
        """The site of the next action of that name at this place."""
        full = "/".join((*self._places, name))
        self._uses[full] = self._uses.get(full, 0) + 1
        return site_hash(f"{full}#{self._uses[full]}")

    @contextmanager
    def event(
        self, name: str, cost_us: float, category: str = "cpu_op", arguments: dict[str, Any] | None = None
    ) -> Iterator[None]:
        """A host event; 70 % of its self time is before the events in it."""
        self.actions.append(Begin(name, category, 0.7 * cost_us, self.site(name), arguments or {}))
        yield
        self.actions.append(End(0.3 * cost_us))

    def busy(self, cost_us: float, name: str = "python", **details: Any) -> None:
        self.actions.append(Busy(cost_us, self.site(name), **details))

    def thread(self, name: str) -> None:
        self.actions.append(Thread(name))

    def launch(self, kind: str, name: str, stream: int, duration_us: float, **details: Any) -> None:
        call = details.pop("call", "cudaLaunchKernel")
        self.actions.append(Launch(Work(kind, name, stream, duration_us, self.site(name), **details), call))

    def record(self, event: str, stream: int) -> None:
        self.actions.append(Record(event, stream))

    def wait(self, event: str, stream: int) -> None:
        self.actions.append(Wait(event, stream))

    def next_batch(self, decode_us: float, workers: int, prefetch: int) -> None:
        self.actions.append(NextBatch(decode_us, workers, prefetch, self.site("batch")))

    def synchronize(self, stream: int) -> None:
        self.actions.append(Synchronize(stream))
