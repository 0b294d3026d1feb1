"""The exit status of a script, with the signal that ended it."""

from __future__ import annotations

import contextlib
import signal

_SIGNALED = 128  # a shell adds the number of the signal to it


def exit_text(status: int | None) -> str:
    """`exit status 139, SIGSEGV`; without a signal `exit status 1`."""
    name = ""
    with contextlib.suppress(ValueError):  # a status that is no signal's
        name = signal.Signals((status or 0) - _SIGNALED).name
    return f"exit status {status}, {name}" if name else f"exit status {status}"
