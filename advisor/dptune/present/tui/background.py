"""Background work of the interface, without garbage collection: it stops every thread to scan millions of objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_running = 0


@contextmanager
def uncollected() -> Iterator[None]:
    """Garbage collection is off until all background work has ended; objects made by then are never scanned."""
    global _running
    with _lock:
        _running += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                gc.freeze()
                gc.enable()
