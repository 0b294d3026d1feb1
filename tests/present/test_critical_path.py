"""The section of the critical path speaks of the profiler only where steps without it were timed."""

from __future__ import annotations

import pytest

from dptune.advice import Report
from dptune.measured import Account, CriticalPath, DeviceFigures, StepAccount
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


def of_rank(account: Account) -> DeviceFigures:
    steps = [StepAccount(number=0, start_ns=0, account=account)]
    return DeviceFigures(device="cuda:0", steps=steps, whole=account, device_operations=1, kernels=1)


def said(
    report: Report, basis: str, idle_ns: int, found: CriticalPath = FOUND, malloc_ns: int = 0, **exposed_ns: int
) -> str:
    """The section of rank 0, where the other ranks compute all the time; a step takes 10 ms."""
    measured = report.measured
    communicating = sum(exposed_ns.values())
    account = Account(
        window_ns=1000,
        compute_ns=1000 - idle_ns - communicating,
        host_idle_ns=idle_ns - malloc_ns,
        malloc_idle_ns=malloc_ns,
        communication_ns=communicating,
        **exposed_ns,
    )
    computing = Account(window_ns=1000, compute_ns=1000)
    ranks = [
        rank.model_copy(update={"devices": [of_rank(computing if rank.rank else account)]}) for rank in measured.ranks
    ]
    total = sum([computing] * (len(ranks) - 1), start=account)
    step = measured.step.model_copy(update={"basis": basis, "time_ns": 10_000_000})
    missing = {name: why for name, why in measured.missing.items() if name != "path"}
    update = {"path": found, "step": step, "account": total, "device_kind": "cpu", "missing": missing, "ranks": ranks}
    shown = report.model_copy(update={"measured": measured.model_copy(update=update)})
    return " ".join("".join(span.text for span in line).strip() for line in path(shown, 200))


@pytest.mark.parametrize("idle_ns", [50, 355])
def test_traced_steps_show_their_path_and_blame_no_profiler(report: Report, idle_ns: int) -> None:
    told = said(report, "traced", idle_ns)
    assert "profiler" not in told
    assert "device is the critical path" not in told
    assert "85.0 %  launching" in told


def test_a_device_that_never_waits_without_the_profiler_sets_the_pace(report: Report) -> None:
    told = said(report, "untraced", 50)
    assert "The device is the critical path: untraced, it idles or waits for 5.0 % of a step." in told
    assert "the host is 85.0 % of the path, because the profiler slows it" in told


def test_a_device_that_idles_without_the_profiler_is_not_the_critical_path(report: Report) -> None:
    told = said(report, "untraced", 355)
    assert "device is the critical path" not in told
    assert "85.0 %  launching" in told


LATE = FOUND.model_copy(update={"idle_share": 0.25})


def test_the_bound_of_a_faster_host_is_that_of_the_rank_whose_path_it_is(report: Report) -> None:
    """Rank 0 idles for 25 % of 10 ms while its host is late; the other ranks never idle, and the mean is less."""
    assert len(report.measured.ranks) > 1
    told = said(report, "traced", 255, LATE)
    assert (
        "save up to 2.50 ms: the time that rank 0's device does not compute while the host is on the critical path."
        in told
    )


def test_waiting_for_other_ranks_adds_to_the_bound(report: Report) -> None:
    """25 % idle and 10 % waiting for others, whose hosts may be late: 3.5 ms of 10. Transfer takes no host."""
    told = said(report, "traced", 255, LATE, exposed_waiting_ns=100, exposed_transfer_ns=50)
    assert "Faster host code, data loading and driver calls save up to 3.50 ms: " in told
    assert (
        "rank 0's device does not compute for 2.50 ms while the host is on the critical path, and rank 0 waits 1.00 ms "
        "for other ranks." in told
    )
    told = said(report, "traced", 255, LATE, exposed_unsplit_ns=100)
    assert "Faster host code, data loading and driver calls save up to 3.50 ms: " in told
    assert "rank 0 waits up to 1.00 ms for other ranks." in told


def test_how_long_memory_calls_keep_the_device_idle_is_said_where_it_is_most(report: Report) -> None:
    """A step takes 10 ms, and 25 % of it is the bound: memory calls of 20 % are 2 ms; 12 % are less than half."""
    said_of = "on the critical path. Memory calls keep the device idle for 2.00 ms."
    assert said_of in said(report, "traced", 255, LATE, malloc_ns=200)
    assert "Memory calls" not in said(report, "traced", 255, LATE, malloc_ns=120)


def test_no_host_saves_more_than_the_device_does_not_compute(report: Report) -> None:
    """A collective ran while the host was late, too, and is both: of 10 ms the device computes for 7."""
    told = said(report, "traced", 50, LATE, exposed_waiting_ns=250)
    assert "Faster host code, data loading and driver calls save up to 3.00 ms: " in told
