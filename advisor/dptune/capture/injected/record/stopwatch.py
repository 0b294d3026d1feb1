"""Times steps without slowing them: a host clock reading per step, and on a GPU one event, read after the window."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch


class Stopwatch:
    """Boundaries of consecutive steps; durations come out once the window is over."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._host_ns: list[int] = []
        self._events: list[Any] = []
        self.mark()

    def mark(self) -> None:
        """A boundary: the end of one step and the start of the next."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        self._host_ns.append(time.perf_counter_ns())

    def host_ns(self) -> list[int]:
        """Host wall time of each step, ns."""
        return [later - earlier for earlier, later in pairwise(self._host_ns)]

    def device_ns(self) -> list[int] | None:
        """Device time between the boundaries of each step, ns; None on a CPU. Waits for the device once."""
        if not self._on_gpu:
            return None
        self._events[-1].synchronize()
        return [round(a.elapsed_time(b) * 1e6) for a, b in pairwise(self._events)]
