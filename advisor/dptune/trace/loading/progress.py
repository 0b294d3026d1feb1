"""How far reading many traces has come, in words."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_LEAST_SECONDS = 1.0  # before that a rate is chance
_MANY = 64  # traces: fewer are read before a rate is of use


@dataclass
class Pace:
    """How many of `total` traces were read, how many of these failed, and since when (seconds of a monotonic clock)."""

    total: int
    done: int = 0
    failed: int = 0
    since: float = field(default_factory=time.monotonic)

    def add(self, *, failed: bool) -> None:
        """Count one more."""
        self.done += 1
        self.failed += failed

    def words(self, name: str) -> str:
        """`12 of 1,024 traces, 1 failed, 3.4 per second: NAME`."""
        seconds = time.monotonic() - self.since
        parts = [f"{self.done:,} of {self.total:,} traces"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.done and self.total >= _MANY and seconds >= _LEAST_SECONDS:
            parts.append(f"{self.done / seconds:.1f} per second")
        return ", ".join(parts) + (f": {name}" if name else "")
