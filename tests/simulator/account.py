"""The simulator's account of a rank's steps, from what it ran: what dptune has to find again in the trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulator.actions import COLLECTIVE, COMPUTE
from tests.simulator.timeline import Timeline


@dataclass(frozen=True)
class Account:
    """Nanoseconds of a step on a device, from its first operation to the first of the next step."""

    window_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int
    copy_ns: int  # copies that overlap neither compute nor communication
    idle_ns: int

    @property
    def exposed_ns(self) -> int:
        return self.communication_ns - self.hidden_ns


def step_windows(timeline: Timeline, first: int, steps: int) -> list[tuple[int, int]]:
    """From the first device operation that a step launched to that of the next step."""
    starts: dict[int, int] = {}
    for operation in timeline.device:
        starts[operation.step] = min(operation.start_ns, starts.get(operation.step, operation.start_ns))
    return [(starts[step], starts[step + 1]) for step in range(first, first + steps)]


def account(timeline: Timeline, window: tuple[int, int]) -> Account:
    """Of a window, by marking when what runs."""
    low, high = window
    changes: list[tuple[int, int, int]] = []
    for operation in timeline.device:
        start_ns, end_ns = max(low, operation.start_ns), min(high, operation.end_ns)
        if start_ns < end_ns:
            kind = {COMPUTE: 0, COLLECTIVE: 1}.get(operation.work.kind, 2)
            changes += [(start_ns, 1, kind), (end_ns, -1, kind)]
    return _swept(low, high, sorted(changes))


def _swept(low: int, high: int, changes: Iterable[tuple[int, int, int]]) -> Account:
    running = [0, 0, 0]
    spent = {"compute": 0, "communication": 0, "hidden": 0, "copy": 0, "idle": 0}
    at = low
    for time_ns, more, kind in [*changes, (high, 0, 0)]:
        passed = time_ns - at
        compute, communication, copy = (bool(count) for count in running)
        spent["compute"] += passed * compute
        spent["communication"] += passed * communication
        spent["hidden"] += passed * (compute and communication)
        spent["copy"] += passed * (copy and not compute and not communication)
        spent["idle"] += passed * (not compute and not communication and not copy)
        running[kind] += more
        at = time_ns
    return Account(high - low, *(spent[name] for name in ("compute", "communication", "hidden", "copy", "idle")))
