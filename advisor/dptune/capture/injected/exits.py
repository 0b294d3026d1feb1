"""Lets a process end although C++ libraries could not be taken apart in it, or are not done yet.

Once Kineto has been set up, a child that os.fork() made hangs or aborts in C's exit(): the destructors of Kineto wait
for a thread that only the parent has. It is so with torch.profiler alone, too. Children of multiprocessing leave by
os._exit and are not concerned. And a rank of a gloo group is aborted there now and then, when its peers have gone
("terminate called without an active exception").

It is aborted with the same words, with torch alone too, where a thread of gloo comes late to let go of what it has
exchanged: that holds an object of Python's (torch 2.13: the context of the backward pass that it was begun in), and a
thread that asks for the interpreter while it goes down is ended in the middle of C++.
"""

from __future__ import annotations

import contextlib
import ctypes
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


def end_without_destructors() -> None:
    """After Python has ended in its own way, C flushes its streams and leaves, with the same status.

    glibc only; elsewhere nothing is changed. What is registered last runs first.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
        libc.on_exit(ctypes.cast(libc.fcloseall, ctypes.c_void_p), None)
