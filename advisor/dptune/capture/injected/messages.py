"""What dptune says from inside the script's process."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from dptune.runfile import paths


def say(*lines: str) -> None:
    """On stderr; nothing where the script has closed it, or nobody takes it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for line in lines:
            print(f"dptune: {line}", file=sys.stderr)


def say_unrecorded(folder: Path, rank: int, text: str) -> None:
    """On stderr, and in the run folder, so that the report names what is not in it."""
    say(text)
    with contextlib.suppress(OSError), paths.unrecorded(folder, rank).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
