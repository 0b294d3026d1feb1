"""Ending a script with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_GRACE_S = 10.0


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, nearest first; empty where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def end(process: subprocess.Popen[bytes], grace_s: float = _GRACE_S) -> None:
    """SIGTERM to the process and all below it, so that they can save; what still lives after the grace is killed."""
    below = descendants(process.pid)
    for pid in [process.pid, *below]:
        _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and (process.poll() is None or any(_alive(pid) for pid in below)):
        time.sleep(0.05)
    for pid in [*below, process.pid]:
        if pid != process.pid or process.poll() is None:
            _signal(pid, signal.SIGKILL)
    process.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
