"""Waits until gloo's threads have nothing to do: what they do late meets what is no longer there.

Gloo reports a finished collective before it has let go of it, so the script may be further than its threads are. With
torch alone, too (2.13):

- A collective that the profiler records has its end written down by such a thread. Once the profiler has stopped, the
  memory for it is gone: a late thread writes into what may be another's by then, or ends the process (SIGSEGV).
- A collective holds an object of Python's, the context of the backward pass that it was begun in. A thread that asks
  for the interpreter while it goes down is ended in the middle of C++ ("terminate called without an active exception").

A collective that is still under way when the profiler stops, because the script waits for it later, is not met by this.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

_GLOO_THREADS = "pt_gloo_runloop"
_LOOK_EVERY_S = 0.001
_PATIENCE_S = 0.5


def let_gloo_rest() -> None:
    """Until no thread of gloo has anything to do, in two looks after each other; half a second at most.

    Linux only, where a process can tell what its threads do; elsewhere it returns at once.
    """
    threads = _gloo_threads()
    quiet, deadline = 0, time.monotonic() + _PATIENCE_S
    while threads and quiet < 2 and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        quiet = 0 if any(map(_runs, threads)) else quiet + 1


def _gloo_threads() -> list[Path]:
    threads = []
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):
            if (thread / "comm").read_text(encoding="utf-8", errors="replace").strip() == _GLOO_THREADS:
                threads.append(thread)
    return threads


def _runs(thread: Path) -> bool:
    """Whether a thread of this process is on a core, or wants to be."""
    with contextlib.suppress(OSError):
        return (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] == "R"
    return False
