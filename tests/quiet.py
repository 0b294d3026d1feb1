"""Tests beside others: measuring again where others had the cores, and recordings without their load."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from dptune.runfile import json_files
from dptune.runfile.facts import Facts

T = TypeVar("T")
TIMES = 3
# Shares of the time of all cores from which on what was measured meanwhile is not held against anyone: what the host
# took, and what processes used that are none of this one's, which a machine with nothing else to do has, too.
TAKEN, USED = 0.01, 0.05


def taken_s() -> float:
    """Seconds for which a core had work and was not let run it, over all cores, since the start; 0 if nobody counts."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")  # "cpu user nice system idle iowait irq softirq steal ..."
    except (OSError, IndexError):
        return 0.0


def used_s() -> float:
    """CPU seconds of processes that are neither this one nor started by it, over all cores, since the start."""
    this = psutil.Process()
    own = 0.0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            times = process.cpu_times()
            own += times.user + times.system + times.children_user + times.children_system
    machine = psutil.cpu_times()
    return float(machine.user + getattr(machine, "nice", 0.0) + machine.system) - own


def measured_in_quiet(attempt: Callable[[int], T], times: int = TIMES) -> T:
    """What the first attempt returns that raises nothing; it gets its number, from 0.

    Where all raise, the test fails, by the last for which it had the cores; where it had them for none, the test is
    skipped and says what others had.
    """
    failed, shares = None, []
    for number in range(times):
        begun, taken, used = time.monotonic(), taken_s(), used_s()
        try:
            return attempt(number)
        except Exception as why:
            cores_s = (time.monotonic() - begun) * (os.cpu_count() or 1)
            taken, used = (taken_s() - taken) / cores_s, max(0.0, used_s() - used) / cores_s
            shares.append(taken + used)
            if taken < TAKEN and used < USED:
                failed = why
    if failed is not None:
        raise failed
    pytest.skip(f"others had {', '.join(f'{share:.1%}' for share in shares)} of this machine's cores meanwhile")


def as_if_alone(run_folder: Path) -> None:
    """Take out of a recording what other processes of the machine did meanwhile: a test runs beside others."""
    for path in run_folder.glob("rank-*.facts.json"):
        facts = json_files.read(path, Facts)
        for window in facts.windows:
            window.load = window.taken_share = None
        json_files.write(path, facts)
