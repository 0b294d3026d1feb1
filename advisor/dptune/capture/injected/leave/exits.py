"""Lets a process end although C++ libraries could not be taken apart in it.

Once Kineto has been set up, a child that os.fork() made hangs or aborts in C's exit(): the destructors of Kineto wait
for a thread that only the parent has. It is so with torch.profiler alone, too. Children of multiprocessing leave by
os._exit and are not concerned. And a rank of a gloo group is aborted there now and then, when its peers have gone
("terminate called without an active exception").
"""

from __future__ import annotations

import contextlib
import ctypes


def end_without_destructors() -> None:
    """After Python has ended in its own way, C flushes its streams and leaves, with the same status.

    glibc only; elsewhere nothing is changed. What is registered last runs first.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
        libc.on_exit(ctypes.cast(libc.fcloseall, ctypes.c_void_p), None)
