"""Times Python's collections of garbage.

Python calls back before and after each, wherever it happens to be: inside the profiler too. So nothing of torch is
called there. The times of full collections are kept by the clock that traces are written in, to be laid over one.
`gc.collect` is wrapped, to know the collections that the script asks for from those that Python starts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
import time
from collections import defaultdict
from typing import Any

from dptune.capture.injected.observe.places import entry, users_function
from dptune.runfile.garbage_collections import CollectCallFacts

FULL = 2  # the generation whose collections take long
MOST = 10_000  # full collections that are kept between two steps
_CALLERS = 50  # lines that are distinguished


class Garbage:
    """What each thread spent collecting, in nanoseconds, and its full collections, in nanoseconds since the epoch."""

    def __init__(self) -> None:
        self._spent_ns: defaultdict[int, int] = defaultdict(int)
        self._full: defaultdict[int, list[list[int]]] = defaultdict(list)
        self._begun_ns = 0
        self._calls: dict[int, dict[tuple[str | None, str], CollectCallFacts]] = {}  # by thread, line and library

    def install(self) -> None:
        """Be called before and after each collection."""
        gc.callbacks.append(self._heard)
        collect = gc.collect

        @functools.wraps(collect)
        def collecting(*args: Any, **kwargs: Any) -> int:
            begun_ns = time.perf_counter_ns()
            try:
                return collect(*args, **kwargs)
            finally:
                spent_ns = time.perf_counter_ns() - begun_ns
                with contextlib.suppress(Exception):
                    self._note(sys._getframe(1), spent_ns)

        gc.collect = collecting

    def take(self) -> tuple[int, list[list[int]]]:
        """What the calling thread has spent since it last asked, and its full collections: [start, end] of each."""
        thread = threading.get_ident()
        return self._spent_ns.pop(thread, 0), self._full.pop(thread, [])

    def take_calls(self) -> list[CollectCallFacts]:
        """The calls of `gc.collect` by the calling thread since it last asked, the longest first."""
        calls = self._calls.pop(threading.get_ident(), {}).values()
        return sorted(calls, key=lambda call: -call.spent_ns)

    def _note(self, caller: Any, spent_ns: int) -> None:
        calls = self._calls.setdefault(threading.get_ident(), {})
        key = users_function(caller), entry(caller)
        if key not in calls and len(calls) >= _CALLERS:
            return
        found = calls.setdefault(key, CollectCallFacts(*key))
        found.calls += 1
        found.spent_ns += spent_ns

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        """Python collects in one thread at a time, and not while this runs."""
        now_ns = time.time_ns()
        if phase == "start":
            self._begun_ns = now_ns
        elif self._begun_ns:
            thread, begun_ns = threading.get_ident(), self._begun_ns
            self._begun_ns = 0
            if now_ns > begun_ns:  # the clock may have been set
                self._spent_ns[thread] += now_ns - begun_ns
                if info.get("generation", FULL) == FULL and len(self._full[thread]) < MOST:
                    self._full[thread].append([begun_ns, now_ns])
