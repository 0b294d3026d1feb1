"""However the process ends, what was recorded is on disk before the interpreter goes down."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from dptune.capture.injected.leave.gloo import let_gloo_rest
from dptune.capture.injected.leave.watchdog import Watchdog


class Endings:
    """Calls `finish(how)` at interpreter exit, on os._exit, and on SIGTERM.

    While the main thread is blocked, `put_down(how)` is called from another thread first.
    """

    def __init__(self, finish: Callable[..., None], put_down: Callable[[str], None]) -> None:
        self._finish = finish
        self._put_down = put_down
        self._watchdog: Watchdog | None = None

    def install(self) -> None:
        """Hook the exits, and SIGTERM where the script left it at its default."""
        atexit.register(self._at_exit)
        self._watch_hard_exit()
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            self._watchdog = Watchdog(signal.SIGTERM, self._heeds, lambda: self._put_down("SIGTERM"))
            self._watchdog.install()

    def disown(self) -> None:
        """In a forked child: die of SIGTERM as if dptune were not there, and do not wake the parent's watchdog."""
        if self._watchdog is not None:
            self._watchdog.disown()
            if self._heeds():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _heeds(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._terminated

    def _at_exit(self) -> None:
        # Python sets it where an uncaught exception is reported, whatever became of sys.excepthook.
        uncaught = getattr(sys, "last_type", None)
        self._finish("script-ended" if uncaught is None else f"raised {uncaught.__name__}")
        let_gloo_rest()

    def _watch_hard_exit(self) -> None:
        """os._exit skips atexit; it is also how a forked process of multiprocessing ends."""
        leave = os._exit

        @functools.wraps(leave)
        def finish_and_leave(status: int) -> NoReturn:
            self._finish(f"os._exit({status})" if status else "script-ended")
            leave(status)

        os._exit = finish_and_leave

    def _terminated(self, number: int, frame: FrameType | None) -> Any:
        if self._watchdog is not None:
            self._watchdog.heed()
        self._finish("SIGTERM", then=functools.partial(_die, number))


def _die(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# Those whose handlers may raise in the middle of anything: Ctrl-C, and torch's own when a loader's worker dies.
_DEFERRED = [number for name in ("SIGINT", "SIGCHLD") if (number := getattr(signal, name, None)) is not None]

# A file of dptune that is larger than the process may write must not end the script; Python itself ignores it.
_TOO_LARGE = getattr(signal, "SIGXFSZ", None)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """What the script's handlers of these signals do, they do after the block: what is being written stays whole."""
    theirs = {number: signal.getsignal(number) for number in _DEFERRED}
    theirs = {number: handler for number, handler in theirs.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _TOO_LARGE is not None and signal.getsignal(_TOO_LARGE) is signal.SIG_DFL:
        theirs[_TOO_LARGE] = signal.SIG_DFL
    came: list[int] = []
    for number in theirs:
        signal.signal(number, signal.SIG_IGN if number == _TOO_LARGE else lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in theirs.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)
