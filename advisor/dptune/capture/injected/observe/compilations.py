"""Times torch.compile's compilations, and reads why it compiled a function again.

torch calls back before the first and after the last of nested compilations. It is asked to once the script has loaded
the compiler, which is never loaded for this.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from dptune.capture.injected.observe.places import users_place
from dptune.runfile.compilation import RecompileFacts

_REASON_LETTERS = 300
_MOST = 20  # functions that are kept


class Compilations:
    """What the process spent compiling, in nanoseconds."""

    def __init__(self) -> None:
        self._spent_ns = 0
        self._begun_ns = 0

    def take(self) -> int | None:
        """What was spent since this was last asked; None where torch does not tell."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        if self._begun_ns:  # goes on, in another thread
            now_ns = time.perf_counter_ns()
            spent_ns, self._begun_ns = spent_ns + now_ns - self._begun_ns, now_ns
        try:
            self._listen()
        except Exception:  # another torch has other callbacks
            return None
        return spent_ns

    def _listen(self) -> None:
        """A reset of the compiler forgets whom it calls back."""
        module = sys.modules.get("torch._dynamo.callback")
        if module is None:
            return
        handler = module.callback_handler
        if self._start not in handler.start_callbacks:
            handler.register_start_callback(self._start)
            handler.register_end_callback(self._end)

    def _start(self, *_: Any) -> None:
        self._begun_ns = time.perf_counter_ns()

    def _end(self, *_: Any) -> None:
        if self._begun_ns:
            self._spent_ns += time.perf_counter_ns() - self._begun_ns
            self._begun_ns = 0


def recompiles() -> list[RecompileFacts]:
    """The functions that were compiled more than once, as the last 64 compilations tell, with the last reason."""
    utils = sys.modules.get("torch._dynamo.utils")
    found: dict[tuple[str, str | None], RecompileFacts] = {}
    with contextlib.suppress(Exception):
        for metrics in utils.get_compilation_metrics() if utils is not None else ():
            if not metrics.recompile_reason or not metrics.co_filename:
                continue
            key = (metrics.co_name, users_place(metrics.co_filename, metrics.co_firstlineno))
            before = found.get(key)
            times = before.times + 1 if before else 1
            found[key] = RecompileFacts(*key, metrics.recompile_reason[:_REASON_LETTERS], times)
    return sorted(found.values(), key=lambda recompile: -recompile.times)[:_MOST]
