"""Whether the kernel ended a process of this recording because memory ran out."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class MemoryKills:
    """Counts the kernel's out-of-memory kills in this process's control group from now on."""

    def __init__(self) -> None:
        self._before = _counted()

    @property
    def seen(self) -> bool:
        """Whether there was one since; False also where nobody counts."""
        now = _counted()
        return self._before is not None and now is not None and now > self._before


def _counted() -> int | None:
    for path in _counters():
        try:
            count = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if count:
            return int(count[1])
    return None


def _counters() -> list[Path]:
    """Where the count may stand: control groups version 2, then 1, seen from outside a container and from within."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = {controllers: group.lstrip("/") for _, controllers, group in (line.split(":", 2) for line in lines)}
    two = [_ROOT / groups[""] / "memory.events", _ROOT / "memory.events"] if "" in groups else []
    legacy = _ROOT / "memory"
    version_one = (
        [legacy / groups["memory"] / "memory.oom_control", legacy / "memory.oom_control"] if "memory" in groups else []
    )
    return [*two, *version_one]
