"""Signals that reach dptune itself while the script runs: noted, and answered by the watching loop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

_FROM_THE_KERNEL = 0x80  # SI_KERNEL: what a terminal sends to everyone in front of it
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@dataclass(frozen=True)
class ReceivedSignal:
    """A signal, and whether a terminal sent it, which then reached the script as well."""

    number: int
    from_terminal: bool


class Signals:
    """Inside `with`, SIGINT, SIGTERM and SIGHUP are heard by `wait`, and interrupt nothing.

    A signal that is ignored stays so (`nohup`). `hold` blocks them, where the system can then say who sent one; call it
    after the script was started, which would inherit that.
    """

    def __init__(self) -> None:
        self._heard: list[ReceivedSignal] = []
        self._before: dict[int, Any] = {}
        self._held: set[int] = set()

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            numbers = [number for name in _NAMES if (number := getattr(signal, name, None)) is not None]
            heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *raised: object) -> None:
        if self._held:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._held)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Block what is heeded, and hear the end of a child too, so that `wait` returns at once."""
        if self._before and hasattr(signal, "sigtimedwait"):
            self._held = {*self._before, signal.SIGCHLD}
            signal.pthread_sigmask(signal.SIG_BLOCK, self._held)

    def wait(self, seconds: float, over: Callable[[], bool] = lambda: False) -> ReceivedSignal | None:
        """The next signal within that time; None where there was none, or a child ended, or it was `over`."""
        if self._heard:
            return self._heard.pop(0)
        if not self._held:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not self._heard and not over():
                time.sleep(min(0.02, seconds))
            return self._heard.pop(0) if self._heard else None
        came = signal.sigtimedwait(self._held, seconds)
        # SIGCONT ends a wait that was stopped; where it had no time left, Python returns memory that nobody has set
        if came is None or came.si_signo not in self._before:
            return None
        return ReceivedSignal(came.si_signo, came.si_code == _FROM_THE_KERNEL)

    def came(self) -> bool:
        """Whether any came that nobody has heard: while the script was being ended."""
        if self._heard:
            return True
        return bool(self._held and {*self._before} & signal.sigpending())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._heard.append(ReceivedSignal(number, _in_front()))


def _in_front() -> bool:
    """Whether this process is in the foreground of a terminal, whose Ctrl-C then reaches the script as well."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
