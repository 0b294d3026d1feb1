"""Signals that end a command: as an interrupt does, with what it wrote in passing removed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP


@contextmanager
def ending() -> Iterator[None]:
    """While it is entered, SIGTERM and SIGHUP raise SystemExit, so that every `with` is left.

    A handler that the program has set, and that of nohup, stay.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    set_here = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in set_here:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in set_here:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
