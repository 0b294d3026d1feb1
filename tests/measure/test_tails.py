"""The last step lacks the wait before the next: left out of a short trace's shares, and said."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.advise.engine import build_report
from dptune.advise.trust import judge
from dptune.config import Settings
from dptune.measure import measure
from dptune.measured import CLASSES, Measured
from dptune.present.text import text

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import LOADER, US, Event, annotation, launched, load_events, measure_events, step


def waiting_steps(count: int, *, wait: int = 45) -> list[Event]:
    """Steps of 100: the loader for the first `wait`, then a kernel of 50; the trace ends with the last step."""
    events: list[Event] = []
    for number in range(count):
        at = 100 * number
        begin = at + wait + 2
        events += [step(number, at, at + 100), annotation(LOADER, at, at + wait)]
        events += launched("k", at + wait, begin, begin + 50, number)
    return events


@pytest.mark.parametrize("count", [3, 4, 8, 20])
def test_the_share_does_not_depend_on_how_many_steps_were_recorded(tmp_path: Path, count: int) -> None:
    """A step computes half of the time. The last window has 50 of its 100; with it 3 steps would compute 60 %."""
    figures = measure_events(tmp_path, waiting_steps(count))
    assert figures.steps.cut_short == [count - 1]
    assert figures.share("compute_ns") == 0.5
    assert figures.step.time_ns == 100 * US


def test_each_rank_loses_its_own_last_step(tmp_path: Path) -> None:
    """Rank 1 was recorded for a step less: its fourth step is as incomplete as the fifth of rank 0."""
    run = load_events(tmp_path, waiting_steps(5), waiting_steps(4))
    figures = measure(run)
    assert figures.steps.cut_short == [3, 4]
    assert figures.steps.by_rank == {0: 4, 1: 3}
    assert figures.share("compute_ns") == 0.5
    found = {one.code: one.text for one in judge(figures, []).findings}
    assert found["last-step-cut-short"].startswith("the last traced step of each rank (3, 4) is excluded")


def busy_steps(count: int) -> list[Event]:
    """Steps of 100, in which the device computes for 98."""
    events: list[Event] = []
    for number in range(count):
        at = 100 * number
        events += [step(number, at, at + 100), *launched("k", at, at + 2, at + 100, number)]
    return events


def test_a_wait_that_one_of_four_ranks_lacks_counts(tmp_path: Path) -> None:
    """It lacks 50 of its 350, the others nothing: 3.6 % of all windows. Without the last step it computes half."""
    figures = measure_events(tmp_path, waiting_steps(4), *[busy_steps(4)] * 3)
    assert figures.steps.cut_short == [3]
    assert figures.share("compute_ns") == pytest.approx((0.5 + 3 * 0.98) / 4)


def test_two_steps_are_too_few_to_leave_one_out(tmp_path: Path) -> None:
    figures = measure_events(tmp_path, waiting_steps(2))
    assert figures.steps.cut_short == []
    assert figures.share("compute_ns") == pytest.approx(100 / 150)


def test_a_last_step_that_lacks_next_to_nothing_stays(tmp_path: Path) -> None:
    """Of 20 steps with 2 of 52 idle the last lacks 2 of 1,038."""
    events: list[Event] = []
    for number in range(20):
        at = 52 * number
        events += [step(number, at, at + 52), *launched("k", at, at + 2, at + 52, number)]
    figures = measure_events(tmp_path, events)
    assert figures.steps.cut_short == []
    assert len(figures.ranks[0].devices[0].steps) == 20


def queueing(count: int) -> list[Event]:
    """The host takes 60 a step, the device 100: it is ever further behind, and works off the rest at the end."""
    events: list[Event] = []
    for number in range(count):
        at = 60 * number
        events += [step(number, at, at + 60), *launched("k", at, 10 + 100 * number, 110 + 100 * number, number)]
    return events


def test_a_queue_that_drains_is_work_of_the_steps(tmp_path: Path) -> None:
    """Copies that run ahead make windows follow the host; the last holds the queue that is left: the mean is right."""
    events = queueing(3)
    for number in range(3):
        at = 60 * number
        events += launched("ahead", at + 1, at + 5, at + 6, 100 + number, stream=9)
    figures = measure_events(tmp_path, events)
    assert figures.steps.cut_short == []
    assert figures.steps.queued_before_ns == 0
    windows = [one.account.window_ns // US for one in figures.ranks[0].devices[0].steps]
    assert windows == [60, 60, 310 - 125]
    assert figures.step.light_median_ns == 60 * US
    assert figures.step.time_ns == round(305 * US / 3)


def lagging(count: int, lag: int, *, recorded: bool) -> list[Event]:
    """Steps of 100 with a kernel of 90 that runs `lag` after its launch, and a copy that does not wait.

    The step before the first launched its own kernel, whose launch is in the trace or not. That kernel ends where the
    first step's begins.
    """
    events: list[Event] = []
    for number in range(count):
        at = 1000 + 100 * number
        events += [step(number, at, at + 100), *launched("k", at + 5, at + lag, at + lag + 90, number)]
        events += launched("ahead", at + 1, at + 2, at + 3, 100 + number, stream=9)
    before = launched("k", 905, 900 + lag, 990 + lag, 99)
    return events + (before if recorded else before[1:])


@pytest.mark.parametrize("recorded", [True, False])
def test_work_queued_before_the_first_step_is_counted(tmp_path: Path, recorded: bool) -> None:
    """The kernel launched before runs from 1,060 to 1,150, the first window begins with a copy at 1,002: 148 of 448."""
    figures = measure_events(tmp_path, lagging(3, 160, recorded=recorded))
    assert [one.account.window_ns // US for one in figures.ranks[0].devices[0].steps] == [100, 100, 248]
    assert figures.steps.queued_before_ns == 148 * US
    assert figures.step.time_ns == round(448 * US / 3)  # without the 148 it is 100, what a step takes
    found = {one.code: one.text for one in judge(figures, []).findings}
    assert found["work-queued-before"] == (
        "the first traced step starts with 0.15 ms of work that was queued before it, which lengthens the mean step "
        "by up to 0.0493 ms: record more steps"
    )


def test_nothing_is_queued_before_where_the_device_keeps_up(tmp_path: Path) -> None:
    figures = measure_events(tmp_path, lagging(3, 6, recorded=True))
    assert figures.steps.queued_before_ns == 0
    assert "work-queued-before" not in {one.code for one in judge(figures, []).findings}


def test_a_last_step_that_drains_the_queue_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    """Five steps of 100; the last window holds three more: 395, and the host took 100."""
    figures = measure_events(tmp_path, lagging(5, 300, recorded=True))
    (aside,) = figures.steps.set_aside
    assert (aside.number, aside.host_ns) == (4, 100 * US)
    assert aside.spent == f"{(aside.length_ns - 100 * US) / 1e6:.2f} ms more than on the host: the launch queue drains"
    assert figures.steps.queued_before_ns == 0  # no window that counts holds the end of the queue


def test_a_step_after_the_marked_ones_ends_the_last(tmp_path: Path) -> None:
    """The next step's first operation was recorded: the last window is as long as any."""
    events = [*waiting_steps(4), *launched("k", 445, 447, 497, 99)]
    figures = measure_events(tmp_path, events)
    assert figures.steps.cut_short == []
    assert [one.account.window_ns for one in figures.ranks[0].devices[0].steps] == [100 * US] * 4


@pytest.mark.long
def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    run = load_events(tmp_path, waiting_steps(3))
    report = build_report(run, measure(run), Settings())
    (finding,) = [one for one in report.trust.findings if one.code == "last-step-cut-short"]
    assert finding.text.startswith(
        "the last traced step (2) is excluded from all figures: the trace ends before the next"
    )
    assert "steps-few" not in {one.code for one in report.trust.findings}  # three were recorded


def adds_up(figures: Measured) -> None:
    """Milliseconds of the classes are those of the mean step, and sum to it."""
    parts = [figures.milliseconds(figures.share(name)) for name in CLASSES]
    assert sum(parts) == pytest.approx(figures.step.time_ns / 1e6, rel=1e-9)
    steps = [one.account for rank in figures.ranks for device in rank.devices for one in device.steps]
    for name, ms in zip(CLASSES, parts, strict=True):
        assert ms == pytest.approx(sum(getattr(one, name) for one in steps) / len(steps) / 1e6, rel=1e-6, abs=1e-9)


def test_milliseconds_add_up_to_the_step(tmp_path: Path) -> None:
    adds_up(measure_events(tmp_path, waiting_steps(5)))
    adds_up(measure_events(tmp_path, queueing(5)))


def test_milliseconds_of_a_public_run_are_measured_ones(findings: Path) -> None:
    """Four ranks, three steps of 356, 139 and 235 ms on the devices: a step computes 124.4 ms in the mean."""
    path = findings / "traces" / "torchrec_2b_rank2_sleeps_20ms"
    run, figures = reading.loaded(path), reading.measured(path)
    adds_up(figures)
    assert figures.milliseconds(figures.share("compute_ns")) == pytest.approx(124.4, abs=0.1)
    idle = [one.account.share("idle_ns") for one in figures.ranks[0].devices[0].steps]
    assert idle == pytest.approx([0.525, 0.070, 0.024], abs=0.001)
    assert figures.steps.queued_before_ns == pytest.approx(75.4e6, rel=0.02)  # the main stream's kernels begin so late
    report = build_report(run, figures, Settings())
    assert "124.4 ms" in text(report, 100)
