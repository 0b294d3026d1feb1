"""Work beside the interface: without the garbage collector, which holds up every thread while it looks at millions of
objects that stay.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_running = 0


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection until all work of this kind has ended; what was made by then is never looked at."""
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
