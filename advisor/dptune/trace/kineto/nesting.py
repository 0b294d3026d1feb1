"""Duration events, which have a phase B where they begin and a phase E where they end, to complete ones.

torch.profiler writes complete events (phase X); tools that convert or merge traces write pairs. The Trace Event Format
demands that pairs of a thread nest and are in the file in the order of their times.
"""

from __future__ import annotations

from collections import Counter

from dptune.trace.kineto.schema import Event, label

BEGINS, ENDS = "B", "E"
MOST_OPEN = 1_000_000  # at once: CPython nests 1,000 calls in a thread unless its limit is raised


class _Thread:
    """The events of one thread that have begun and not ended, innermost last, and how often each name is among them."""

    def __init__(self) -> None:
        self.began: list[tuple[str, Event, int]] = []
        self.names: Counter[str] = Counter()

    def push(self, name: str, event: Event, position: int) -> None:
        self.began.append((name, event, position))
        self.names[name] += 1

    def pop(self) -> tuple[str, Event, int]:
        name, event, position = self.began.pop()
        self.names[name] -= 1
        if not self.names[name]:
            del self.names[name]
        return name, event, position


class Nesting:
    """Pairs beginnings and ends, taken in the order of the file.

    `cut` counts those without their other half, and `open` those that have begun and not ended so far.
    """

    def __init__(self) -> None:
        self.cut = self.open = 0
        self._threads: dict[tuple[str, str], _Thread] = {}

    def begin(self, event: Event, position: int) -> None:
        """Keep a copy of the event of phase B at `position` of `traceEvents`."""
        kept = Event(event.ph, event.cat, event.name, event.pid, event.tid, event.ts.copy(), args=event.args.copy())
        self._threads.setdefault(_thread(event), _Thread()).push(label(event.name), kept, position)
        self.open += 1

    def end(self, event: Event) -> tuple[Event, int] | None:
        """The event that this one of phase E ends, and its position; None where it did not begin in the file.

        It ends the innermost event of its thread and its name, or of any name where it has none. Events inside that one
        were cut. Arguments of an end are not read.
        """
        thread, name = self._threads.get(_thread(event)), label(event.name)
        if thread is None or not thread.began or (name and name not in thread.names):
            self.cut += 1
            return None
        while True:
            began, found, position = thread.pop()
            self.open -= 1
            if not name or began == name:
                return found, position
            self.cut += 1


def _thread(event: Event) -> tuple[str, str]:
    return label(event.pid), label(event.tid)
