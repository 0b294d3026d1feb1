"""Tests beside others: measuring again where a host took its cores away, and recordings without their load."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from dptune.runfile import form
from dptune.runfile.facts import Facts

T = TypeVar("T")
TIMES = 3
TAKEN = 0.01  # share of the time of all cores from which on what was measured meanwhile is not held against anyone


def taken_s() -> float:
    """Seconds for which a core had work and was not let run it, over all cores, since the start; 0 if nobody counts."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")  # "cpu user nice system idle iowait irq softirq steal ..."
    except (OSError, IndexError):
        return 0.0


def measured_in_quiet(attempt: Callable[[int], T], times: int = TIMES) -> T:
    """What the first attempt returns that raises nothing; it gets its number, from 0.

    Where all raise, the test fails, by the last for which the machine had its cores; where it had them for none, the
    test is skipped and says what was taken away.
    """
    failed, shares = None, []
    for number in range(times):
        begun, before = time.monotonic(), taken_s()
        try:
            return attempt(number)
        except Exception as why:
            shares.append((taken_s() - before) / (time.monotonic() - begun) / (os.cpu_count() or 1))
            if shares[-1] < TAKEN:
                failed = why
    if failed is not None:
        raise failed
    pytest.skip(f"of this machine's cores {', '.join(f'{share:.1%}' for share in shares)} were taken away meanwhile")


def as_if_alone(run_folder: Path) -> None:
    """Take out of a recording what other processes of the machine did meanwhile: a test runs beside others."""
    for path in run_folder.glob("rank-*.facts.json"):
        facts = form.read(path, Facts)
        for window in facts.windows:
            window.load = None
        form.write(path, facts)
