"""The stack of another thread, read in one go, so that reading it cannot crash the process.

CPython 3.11 makes the object of a frame when it is asked for, which may start a collection of garbage. What runs then,
such as `gc.callbacks`, can let the other thread go on: its frame returns, and the new object is written into memory
that is no longer the frame's (python/cpython#111363; profilers of others crash in the same place). So no garbage is
collected meanwhile. Other versions need nothing: up to 3.10 frames are objects, from 3.12 on a collection waits until
no function in C runs. Without the GIL no stack can be read.

Only functions in C run while frames are read, and between them no other thread gets the interpreter. So all frames are
of one moment, and none outlives its call: a frame that is held keeps its tensors alive.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import operator
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

_COLLECTS_MEANWHILE = sys.version_info[:2] == (3, 11)
_READ = operator.attrgetter("f_code", "f_lineno")
Line = tuple[CodeType, int | None]


def stack_of(thread: int, deepest: int) -> list[Line]:
    """Code and line of the frames of a running thread, innermost first, `deepest` at most; [] where it has ended."""
    if not can_read():
        return []
    with _no_garbage_collected():
        return lines_of(sys._current_frames().get(thread), deepest)


def lines_of(frame: FrameType | None, deepest: int) -> list[Line]:
    """Code and line of a frame and of those that called it."""
    found: list[Line] = []
    callers = itertools.accumulate(itertools.repeat("f_back", deepest - 1), getattr, initial=frame)
    with contextlib.suppress(AttributeError):  # None comes after the outermost frame
        found.extend(map(_READ, callers))
    return found


def can_read() -> bool:
    """Whether the interpreter has a lock, so that a thread's frames stay as they are while they are read."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    if not _COLLECTS_MEANWHILE or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
