"""A lock that ends with its process."""

from __future__ import annotations

import sys


def lock(descriptor: int) -> bool:
    """Lock what is open, for as long as it is open; False where somebody else holds it, or it cannot be locked."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
