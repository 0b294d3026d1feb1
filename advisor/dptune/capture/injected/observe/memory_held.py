"""How many bytes this process holds: allocated on its GPU, else resident in memory.

A reading takes a few microseconds, and does not wait for the device.
"""

from __future__ import annotations

import contextlib
import os

import torch

_STATM = "/proc/self/statm"  # pages: size, resident, ...; source: Linux, proc(5)


class Held:
    """Reads it, in a process that computes on such a device."""

    def __init__(self, device_kind: str) -> None:
        self._index = torch.cuda.current_device() if device_kind == "cuda" else None
        self._file = -1
        if device_kind == "cpu":
            with contextlib.suppress(OSError, ValueError):  # another system has no such file
                self._page = os.sysconf("SC_PAGE_SIZE")
                self._file = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)

    def bytes(self) -> int | None:
        """Now; None where it is not known."""
        with contextlib.suppress(Exception):
            if self._index is not None:
                return int(torch.cuda.memory_stats_as_nested_dict(self._index)["allocated_bytes"]["all"]["current"])
            if self._file >= 0:
                return int(os.pread(self._file, 128, 0).split()[1]) * self._page
        return None

    def close(self) -> None:
        """Read no more."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
