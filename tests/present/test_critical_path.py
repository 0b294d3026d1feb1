"""The section of the critical path speaks of the profiler only where steps without it were timed."""

from __future__ import annotations

import pytest

from dptune.advice import Report
from dptune.measured import Account, CriticalPath
from dptune.present.sections.critical_path import path

FOUND = CriticalPath(
    rank=0,
    device="cuda:0",
    steps=1,
    path_ns=1000,
    compute_ns=100,
    launching_ns=850,
    queued_ns=50,
    idle_share=0.03,
    longest=[],
)


def said(report: Report, basis: str, idle_ns: int) -> str:
    measured = report.measured
    account = Account(window_ns=1000, compute_ns=1000 - idle_ns, host_idle_ns=idle_ns)
    step = measured.step.model_copy(update={"basis": basis})
    missing = {name: why for name, why in measured.missing.items() if name != "path"}
    update = {"path": FOUND, "step": step, "account": account, "device_kind": "cpu", "missing": missing}
    shown = report.model_copy(update={"measured": measured.model_copy(update=update)})
    return " ".join("".join(span.text for span in line).strip() for line in path(shown, 200))


@pytest.mark.parametrize("idle_ns", [50, 355])
def test_traced_steps_show_their_path_and_blame_no_profiler(report: Report, idle_ns: int) -> None:
    told = said(report, "traced", idle_ns)
    assert "profiler" not in told
    assert "device is the critical path" not in told
    assert "85.0 %  launching" in told


def test_a_device_that_never_waits_without_the_profiler_sets_the_pace(report: Report) -> None:
    told = said(report, "unprofiled", 50)
    assert "The device is the critical path: without the profiler it is idle or waiting for 5.0 % of a step." in told
    assert "the host is 85.0 % of the path, because the profiler slows it" in told


def test_a_device_that_idles_without_the_profiler_is_not_the_critical_path(report: Report) -> None:
    told = said(report, "unprofiled", 355)
    assert "device is the critical path" not in told
    assert "85.0 %  launching" in told
