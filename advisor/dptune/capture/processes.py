"""The processes of a recording: which they are, and ending all of them. Read from /proc; without it only the first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

GRACE_S = 10.0  # between SIGTERM and SIGKILL


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, nearest first; empty where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for other in _all():
        above = parent(other)
        if above is not None:
            children.setdefault(above, []).append(other)
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def carrying(entry: str) -> list[int]:
    """Every living process of ours that was started with this `NAME=value` in its environment, wherever it is now."""
    wanted = entry.encode()
    return [pid for pid in _all() if pid != os.getpid() and wanted in environ(pid) and alive(pid)]


def environ(pid: int) -> list[bytes]:
    """The environment a process was started with, as `NAME=value`; empty where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def words(pid: int) -> list[str]:
    """The command line of a process; empty where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def parent(pid: int) -> int | None:
    """The process above this one."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def started(pid: int) -> int | None:
    """When a process was started, in clock ticks since the machine was: with its id, nobody else's."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def end(process: subprocess.Popen[bytes], entry: str = "", grace_s: float = GRACE_S) -> None:
    """SIGTERM to the process, all below it and all that carry `entry`; what still lives after the grace is killed."""

    def family() -> set[int]:
        return {*descendants(process.pid), *(carrying(entry) if entry else ())}

    below = family()
    for pid in [process.pid, *below]:
        _signal(pid, signal.SIGTERM)
    _wait(lambda: process.poll() is not None and not any(map(alive, below)), grace_s)
    _kill(process, below | family())


def end_all(pids: Iterable[int], grace_s: float = GRACE_S) -> None:
    """The same for processes that nobody waits for any more."""
    left = set(pids)
    for pid in left:
        _signal(pid, signal.SIGTERM)
    _wait(lambda: not any(map(alive, left)), grace_s)
    for pid in filter(alive, left):
        _signal(pid, signal.SIGKILL)


def _kill(process: subprocess.Popen[bytes], others: Iterable[int]) -> None:
    for pid in filter(alive, others):
        _signal(pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()


def _wait(over: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not over():
        time.sleep(0.05)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _all() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
