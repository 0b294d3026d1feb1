"""However the process ends, what was recorded is on disk before the interpreter goes down."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Endings:
    """Calls `finish(how)` at interpreter exit, with the uncaught exception's name, and on SIGTERM."""

    def __init__(self, finish: Callable[[str], None]) -> None:
        self._finish = finish
        self._how = "script-ended"

    def install(self) -> None:
        """Hook the exit, uncaught exceptions, and SIGTERM where the script left it at its default."""
        atexit.register(lambda: self._finish(self._how))
        self._note_uncaught()
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)

    def _note_uncaught(self) -> None:
        report = sys.excepthook

        def noting(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._how = f"raised {kind.__name__}"
            report(kind, error, trace)

        sys.excepthook = noting

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self._finish("SIGTERM")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
