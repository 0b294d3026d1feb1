"""Heeds a signal that the main thread cannot: Python runs handlers there, and a blocked collective never lets it.

Python's own handler, in C, writes the number of each signal to a pipe even so; a thread reads the pipe. The profiler
can only be stopped in the thread that started it, so the watching thread first saves what it may touch, then cuts the
connections that a gloo collective waits on: the main thread comes back with an error, and with its signal handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_PATIENCE_S = 2.0  # the main thread may be about to come back
_SAVING_S = 5.0  # it has come back, or it never will


class Watchdog:
    """Where the main thread does not heed the signal in time, calls `save` and sees to it that the process dies."""

    def __init__(self, number: signal.Signals, ours: Callable[[], bool], save: Callable[[], None]) -> None:
        """`ours`: whether the signal still has dptune's handler; one of the script's own may take its time."""
        self._number = number
        self._ours = ours
        self._save = save
        self._heeded = threading.Event()
        self._pid = os.getpid()

    def install(self) -> None:
        """Watch, unless the script has that pipe in use itself; called in the main thread."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        theirs = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if theirs != -1:
            signal.set_wakeup_fd(theirs)
            os.close(reading)
            os.close(writing)
            return
        threading.Thread(target=self._watch, args=(reading,), name="dptune-watchdog", daemon=True).start()

    def heed(self) -> None:
        """The main thread has taken the signal up."""
        self._heeded.set()

    def disown(self) -> None:
        """In a forked child, whose signals are not those of the parent that reads the pipe."""
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)

    def _watch(self, reading: int) -> None:
        while data := os.read(reading, 64):
            if int(self._number) not in data or self._heeded.wait(_PATIENCE_S) or not self._ours():
                continue
            self._save()
            _cut_connections()
            if not self._heeded.wait(_SAVING_S) and self._ours():
                self._die()

    def _die(self) -> None:
        """Of the signal itself, so that whoever waits sees that; only C can set a handler outside the main thread."""
        libc = ctypes.CDLL(None)
        libc.signal(int(self._number), 0)  # 0: SIG_DFL
        os.kill(self._pid, self._number)


def _cut_connections() -> None:
    """End every TCP connection of this process, which is about to die anyway."""
    for entry in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError, ValueError):
            if str(entry.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        connection.getpeername()  # raises for one that only listens, which gloo would take badly
                        connection.shutdown(socket.SHUT_RDWR)
