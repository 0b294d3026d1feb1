"""What each thread of a rank's host was in: ranges of the script, Python functions, operators and runtime calls.

They nest by containment. What is shorter than the resolution of a picture is left out, so that a trace of millions of
events is drawn as fast as a small one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dptune.measure.host.callers import PYTHON_CATEGORIES, has_stacks
from dptune.measure.intervals import Ints
from dptune.trace.events import Trace
from dptune.trace.kernels import HOST_COLLECTIVE_PREFIXES, OPERATOR_CATEGORIES, RANGE_CATEGORIES
from dptune.trace.marks import step_rows
from dptune.trace.vendors import RUNTIME_CATEGORIES

_CATEGORIES = RANGE_CATEGORIES | PYTHON_CATEGORIES | RUNTIME_CATEGORIES
_MOST_DEEP = 256  # levels of nesting that are drawn: a trace of a recursion has thousands


@dataclass(frozen=True)
class Nested:
    """One event of a host thread, whole. `kind` is range, function, operator or call; `depth` is 0 for the outermost
    of those that are drawn.
    """

    name: str
    kind: str
    start_ns: int
    end_ns: int
    depth: int

    @property
    def length_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class ThreadRanges:
    """The events of a thread, in order of start, the outer before the inner."""

    label: str
    events: list[Nested]


class HostRanges:
    """The nested events of every host thread of a trace, between any two moments of its clock."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def between(self, start_ns: int, end_ns: int, least_ns: int = 1) -> list[ThreadRanges]:
        """The threads that ran anything then, the one that marks steps first; events of `least_ns` or more."""
        found = []
        for thread, rows in self._threads:
            columns = self._trace.columns
            start, end = columns.ts_ns[rows], columns.ends(rows)
            drawn = np.minimum(end, end_ns) - np.maximum(start, start_ns)
            events = self._nested(rows[drawn >= max(least_ns, 1)])
            if events:
                found.append(ThreadRanges(self._label(thread), events))
        return found

    def path(self, at_ns: int) -> list[Nested]:
        """What the thread that marks steps, else the one with most events, was in at a moment; the outermost first."""
        columns, rows = self._trace.columns, self._rows
        rows = rows[(columns.ts_ns[rows] <= at_ns) & (columns.ends(rows) > at_ns)]
        rows = rows[columns.thread[rows] == self._main]
        return self._nested(rows[self._order(rows)])

    @cached_property
    def has_functions(self) -> bool:
        """Whether the trace was recorded with Python functions."""
        return has_stacks(self._trace.columns)

    @cached_property
    def _rows(self) -> Ints:
        """The events of host threads that take time."""
        columns = self._trace.columns
        rows = columns.rows(_CATEGORIES, lambda name: not name.startswith(HOST_COLLECTIVE_PREFIXES))
        return rows[columns.dur_ns[rows] > 0]

    @cached_property
    def _main(self) -> int:
        columns = self._trace.columns
        steps, _ = step_rows(columns)
        if len(steps):
            return int(columns.thread[steps[0]])
        threads, counts = np.unique(columns.thread[self._rows], return_counts=True)
        return int(threads[counts.argmax()]) if len(threads) else -1

    @cached_property
    def _threads(self) -> list[tuple[int, Ints]]:
        """The rows of each thread in order of start, the longer first; the main thread, then those with most events."""
        columns, rows = self._trace.columns, self._rows
        rows = rows[self._order(rows)]
        threads, first = np.unique(columns.thread[rows], return_index=True)
        found = zip(threads.tolist(), np.split(rows, first[1:]), strict=True) if len(rows) else ()
        return sorted(found, key=lambda part: (part[0] != self._main, -len(part[1])))

    def _order(self, rows: Ints) -> Ints:
        """By thread and start, the outer before the inner."""
        columns = self._trace.columns
        return np.lexsort((-columns.dur_ns[rows], columns.ts_ns[rows], columns.thread[rows]))

    def _nested(self, rows: Ints) -> list[Nested]:
        """The events of some rows of a thread, each as deep as the number of those that it lies in."""
        columns = self._trace.columns
        operators, functions = (
            columns.of_category(OPERATOR_CATEGORIES, rows),
            columns.of_category(PYTHON_CATEGORIES, rows),
        )
        calls = columns.of_category(RUNTIME_CATEGORIES, rows)
        kinds = np.select([operators, functions, calls], ["operator", "function", "call"], "range").tolist()
        found: list[Nested] = []
        around: list[int] = []  # ends of the events that the next one may lie in
        times = zip(columns.ts_ns[rows].tolist(), columns.ends(rows).tolist(), strict=True)
        for row, kind, (start, end) in zip(rows.tolist(), kinds, times, strict=True):
            while around and around[-1] <= start:
                around.pop()
            if len(around) < _MOST_DEEP:
                found.append(Nested(columns.name(row), kind, start, end, len(around)))
                around.append(end)
        return found

    def _label(self, thread: int) -> str:
        """The name of a thread without what all have in common; its number where it has none."""
        columns = self._trace.columns
        process, number = divmod(thread, len(columns.labels))
        pid, tid = columns.labels[process], columns.labels[number]
        name = self._trace.thread_names.get((pid, tid), "")
        _, _, inner = name.rpartition("(")
        return inner.rstrip(")").strip() or f"thread {tid}"
