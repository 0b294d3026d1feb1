"""Times Python's collections of garbage, and marks the full ones in the trace that is being recorded."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import defaultdict
from typing import Any

import torch

FULL = 2  # the generation whose collections take long; the younger ones are timed, not marked


class Garbage:
    """Nanoseconds of collecting by thread. `marking`: whether a trace is being recorded."""

    def __init__(self) -> None:
        self._spent_ns: defaultdict[int, int] = defaultdict(int)
        self._begun_ns = 0
        self._mark: Any = None
        self.marking = False

    def install(self) -> None:
        """Be called before and after each collection."""
        gc.callbacks.append(self._heard)

    def take(self) -> int:
        """Nanoseconds that the calling thread has spent collecting since it last asked."""
        return self._spent_ns.pop(threading.get_ident(), 0)

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        """Python collects in one thread at a time, and not while this runs."""
        if phase == "start":
            if self.marking and info.get("generation", FULL) == FULL:
                with contextlib.suppress(Exception):
                    self._mark = torch.profiler.record_function(f"Python garbage collection#{FULL}")
                    self._mark.__enter__()
            self._begun_ns = time.perf_counter_ns()
        elif self._begun_ns:
            self._spent_ns[threading.get_ident()] += time.perf_counter_ns() - self._begun_ns
            self._begun_ns, mark, self._mark = 0, self._mark, None
            if mark is not None:
                with contextlib.suppress(Exception):
                    mark.__exit__(None, None, None)
