"""What dptune says from inside the script's process."""

from __future__ import annotations

import contextlib
import sys


def say(*lines: str) -> None:
    """On stderr; nothing where the script has closed it, or nobody takes it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for line in lines:
            print(f"dptune: {line}", file=sys.stderr)
