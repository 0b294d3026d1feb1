"""The key that leaves the full-screen report, while the report is loaded."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_QUITS = b"qQ"
_Made = TypeVar("_Made")


def until_quit(make: Callable[[], _Made]) -> _Made | None:
    """What `make` returns; None once `q` is typed on the terminal that stdin is. Ctrl-C raises KeyboardInterrupt.

    To be called in the main thread. Other keys have no effect; without termios, as on Windows, or where stdin is no
    terminal, neither has `q`.
    """
    try:
        import termios
        import tty
    except ImportError:
        return make()
    if not sys.stdin.isatty():
        return make()
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    keys = _Keys(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSANOW)  # what was typed since the command is kept, unlike by TCSAFLUSH
        keys.start()
        made = make()
        keys.end()
    except KeyboardInterrupt:
        if not keys.quit:
            raise
        return None
    finally:
        keys.end()
        termios.tcsetattr(terminal, termios.TCSANOW, before)
    return made


class _Keys(threading.Thread):
    """Reads keys until `end`; `quit` is set, and the main thread interrupted, at the one that quits."""

    def __init__(self, terminal: int) -> None:
        super().__init__(daemon=True)
        self.quit = False
        self._terminal, self._lock, self._ended = terminal, threading.Lock(), False
        self._waked, self._wakes = os.pipe()

    def run(self) -> None:
        while not self.quit:
            ready, _, _ = select.select([self._terminal, self._waked], [], [])
            if self._waked in ready:
                return
            key = os.read(self._terminal, 1)
            with self._lock:
                if self._ended or not key:
                    return
                if key in _QUITS:
                    self.quit = True
                    os.kill(os.getpid(), signal.SIGINT)

    def end(self) -> None:
        """Read no more keys; none interrupts afterwards."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        os.write(self._wakes, b"x")
        if self.is_alive():
            self.join()
        os.close(self._waked)
        os.close(self._wakes)
