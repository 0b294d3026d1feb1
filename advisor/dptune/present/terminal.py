"""What this terminal can show: colours, how wide a line, the full-screen interface."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import TextIO

NARROWEST = 40
WIDEST_ASKED = 400
WIDEST = 120  # a longer line is hard to read
_BLOCKS = "█▓▒≡·▶─"  # what the first screen is drawn with
_DRAWN = "╭━▁█⏎"  # some of what the full-screen interface is made of


def colours(stream: TextIO) -> bool:
    """Whether to colour: only on a terminal that is not dumb, and never under NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width(stream: TextIO, asked: int | None = None) -> int:
    """Columns of a line: what was asked for, else the terminal's own, else 80."""
    if asked is not None:
        return max(asked, NARROWEST)
    if not stream.isatty():
        return 80
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def draws_blocks(stream: TextIO) -> bool:
    """Whether block characters can be written to it."""
    try:
        _BLOCKS.encode(getattr(stream, "encoding", None) or "utf-8")  # none: it takes text as it is
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def no_interface() -> str | None:
    """Why the full-screen interface cannot be shown here; None where it can."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or not stream.isatty():
            return f"{name} is not a terminal"
    if os.environ.get("TERM", "dumb") == "dumb" and sys.platform != "win32":
        return "the terminal is dumb (TERM)"
    if os.environ.get("CI"):
        return "CI is set"
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"  # where textual draws
    try:
        _DRAWN.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return f"its lines and blocks cannot be written in {encoding}, the encoding of this terminal"
    if importlib.util.find_spec("textual") is None:
        return "textual is not installed"
    return None
