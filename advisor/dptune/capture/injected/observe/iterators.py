"""Counts the iterators that the script makes of its DataLoaders while steps are timed, by the line that makes them.

The cost is two clock readings for an iterator, and a look at an attribute for a batch.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import DataLoader, dataloader

from dptune.capture.injected.observe.places import Places, is_the_users, relative, users_line
from dptune.runfile.iterators import IteratorFacts

_LINES, _LOADERS = 16, 64  # that are distinguished


@dataclass
class _Line:
    """One line of the script. `loader` and `data` are weak references to those of its last iterator."""

    facts: IteratorFacts
    loader: Any = None
    data: Any = None
    spent_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class _Mark:
    """What is noted on an iterator: the line that made it, and whether a batch was drawn from it.

    An iterator frees the order of its samples, which can be a list of millions of numbers, and after that this mark:
    attributes go in the order in which they were set. A weak reference shows when that starts.
    """

    def __init__(self, line: _Line, iterator: Any, freed: Callable[[_Line, int], None]) -> None:
        self.line = line
        self.drawn = False
        begun: list[int] = []
        self._begun, self._freed = begun, freed
        self._goes = weakref.ref(iterator, lambda _: begun.append(time.perf_counter_ns()))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            if self._begun:
                self._freed(self.line, time.perf_counter_ns() - self._begun[0])


class Iterators:
    """The iterators that the training thread makes in the untraced window."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._thread: int | None = None  # the training thread, while steps are timed
        self._step = 0
        self._lines: dict[tuple[CodeType, int], _Line] = {}
        self._first: dict[int, tuple[Any, str | None]] = {}  # by loader, the line that made its first iterator

    def install(self) -> None:
        """Wrap what makes an iterator, and what ends its workers."""
        make = DataLoader.__iter__
        end = dataloader._MultiProcessingDataLoaderIter._shutdown_workers

        @functools.wraps(make)
        def made(this: Any) -> Any:
            with contextlib.suppress(Exception):
                self._note_first(this, sys._getframe(1))
            begun = time.perf_counter_ns()
            iterator = make(this)
            if self._thread == threading.get_ident():
                with contextlib.suppress(Exception):
                    self._note(this, iterator, time.perf_counter_ns() - begun, sys._getframe(1))
            return iterator

        @functools.wraps(end)
        def ended(this: Any) -> None:
            mark = self._mark(this)
            if mark is None:
                end(this)
                return
            begun = time.perf_counter_ns()
            end(this)
            mark.line.spent_ns[self._step] += time.perf_counter_ns() - begun

        DataLoader.__iter__ = made  # type: ignore[method-assign]
        dataloader._MultiProcessingDataLoaderIter._shutdown_workers = ended  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        """The window opens in the training thread."""
        self._thread = threading.get_ident()

    def end_step(self) -> None:
        """One step of the window has ended."""
        self._step += self._thread is not None

    def end(self) -> None:
        """The window closes."""
        self._thread = None

    def drawn(self, iterator: Any, spent_ns: int) -> None:
        """A batch was drawn; `spent_ns` is that time without the preparation of the batch in this process."""
        mark = self._mark(iterator)
        if mark is not None:
            mark.line.facts.batches += 1
            mark.line.spent_ns[self._step] += 0 if mark.drawn else max(0, spent_ns)
            mark.drawn = True

    def used_up(self, iterator: Any) -> None:
        """It has no further batch."""
        mark = self._mark(iterator)
        if mark is not None:
            mark.line.facts.used_up += 1

    def first_line(self, loader: Any) -> str | None:
        """`file:line` of the script that made the first iterator of a loader; None where none was made."""
        reference, line = self._first.get(id(loader), (None, None))
        return line if reference is not None and reference() is loader else None

    def facts(self) -> list[IteratorFacts]:
        """What the lines of the script made."""
        for line in self._lines.values():
            line.facts.spent_ns = [line.spent_ns.get(step, 0) for step in range(self._step)]
        return [line.facts for line in self._lines.values()]

    def _mark(self, iterator: Any) -> _Mark | None:
        if self._thread is None or self._thread != threading.get_ident():
            return None
        mark = getattr(iterator, "dptune_mark", None)
        return mark if isinstance(mark, _Mark) else None

    def _note(self, loader: Any, iterator: Any, spent_ns: int, frame: FrameType | None) -> None:
        while frame is not None and not is_the_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return
        at = frame.f_code, frame.f_lineno
        line = self._lines.get(at)
        if line is None and len(self._lines) < _LINES:
            line = self._lines[at] = self._line(loader, frame)
        if line is None:
            return
        iterator.dptune_mark = _Mark(line, iterator, self._end)
        same = line.loader is None or line.loader() is loader or line.data() is loader.dataset
        line.facts.made += 1
        line.facts.other_data += not same
        line.loader, line.data = _reference(loader), _reference(loader.dataset)
        line.spent_ns[self._step] += spent_ns

    def _note_first(self, loader: Any, frame: FrameType) -> None:
        known = self._first.get(id(loader))
        if known is None or known[0]() is not loader:
            if len(self._first) >= _LOADERS:
                self._first.clear()  # a script that makes loaders in each step
            self._first[id(loader)] = weakref.ref(loader), users_line(frame)

    def _end(self, line: _Line, spent_ns: int) -> None:
        """An iterator was freed."""
        if self._thread == threading.get_ident():
            line.spent_ns[self._step] += spent_ns

    def _line(self, loader: Any, frame: FrameType) -> _Line:
        name = str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name)).replace(".<locals>", "")
        facts = IteratorFacts(
            where=f"{relative(frame.f_code.co_filename)}:{frame.f_lineno}",
            function=name,
            loader=self._places.line(loader),
            dataset=type(loader.dataset).__name__,
            sampler=type(loader.sampler).__name__,
            num_workers=loader.num_workers,
        )
        with contextlib.suppress(Exception):  # an iterable data set may have no length
            facts.epoch_batches = len(loader)
        with contextlib.suppress(Exception):
            facts.samples = len(loader.dataset)
        return _Line(facts)


def _reference(thing: Any) -> Any:
    """Nothing is kept alive; what cannot be referred to weakly, as a list, is never the same."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: None
