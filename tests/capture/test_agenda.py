"""The order of the windows, and where their time bound ends them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.capture.injected.record.plan import VARIABLE, Plan
from dptune.runfile.record import LEAST_STEPS, Schedule

pytest.importorskip("torch", reason="the agenda asks torch for its process group")
from dptune.capture.injected.record import agenda as agendas

COUNTS = st.integers(min_value=0, max_value=50)
SCHEDULES = st.builds(
    Schedule,
    warmup=COUNTS,
    untraced=COUNTS,
    light=COUNTS,
    detailed=COUNTS,
    noise=COUNTS,
    window_s=st.sampled_from([0.0, 60.0]),
)


class Clock:
    """time.monotonic, moved on by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def walked(schedule: Schedule, step_s: float) -> tuple[agendas.Agenda, list[tuple[int, str, str]]]:
    """Every moment of an agenda whose steps take so long: (step, action, window)."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agendas, "time", clock)
        agenda, moments = agendas.Agenda(schedule), []
        while not agenda.over:
            clock.now += step_s
            moments += [(agenda.step, *due) for due in agenda.tick()]
            assert agenda.step <= schedule.total_steps or schedule.least_s
    return agenda, moments


@given(SCHEDULES)
def test_windows_follow_one_another_and_end_where_the_plan_says(schedule: Schedule) -> None:
    agenda, moments = walked(schedule, step_s=0.001)
    assert agenda.step == schedule.total_steps
    assert not agenda.cut_short
    opened = {window: step for step, action, window in moments if action == "open"}
    closed = {window: step for step, action, window in moments if action == "close"}
    for window in ("untraced", "light", "detailed", "noise"):
        length = getattr(schedule, window)
        assert (window in opened) == (length > 0)
        if length:
            assert closed[window] - opened[window] == length
    assert [action for _, action, _ in moments].count("end") == 1
    for (_, action, window), (_, next_action, next_window) in itertools.pairwise(moments):
        if action in ("prepare", "open"):
            assert (next_action, next_window) == ("open" if action == "prepare" else "close", window)


@given(SCHEDULES, st.floats(min_value=0.5, max_value=600.0))
def test_a_time_bound_ends_windows_of_long_steps_but_never_empty_ones(schedule: Schedule, step_s: float) -> None:
    _, moments = walked(schedule, step_s)
    opened = {window: step for step, action, window in moments if action == "open"}
    for step, action, window in moments:
        if action != "close":
            continue
        made, asked = step - opened[window], getattr(schedule, window)
        assert min(asked, LEAST_STEPS[window]) <= made <= asked
        if made < asked:
            assert made * step_s >= schedule.window_s > 0
            assert made == LEAST_STEPS[window] or (made - 1) * step_s < schedule.window_s


@pytest.mark.long
@given(st.integers(1, 60), st.floats(min_value=0.001, max_value=30.0))
def test_a_window_lasts_the_steps_and_the_seconds_that_it_is_to_last_at_least(steps: int, step_s: float) -> None:
    """Both, unless that would take longer than its time bound."""
    _, moments = walked(Schedule(1, steps, 0, 0, window_s=60.0, least_s=3.0), step_s)
    opened, closed = (next(step for step, action, _ in moments if action == word) for word in ("open", "close"))
    made = closed - opened
    if made < steps:
        assert made * step_s >= 60.0 * (1 - 1e-9)
    else:
        assert made * step_s >= 3.0 * (1 - 1e-9)
        assert made == steps or (made - 1) * step_s < 3.0 * (1 + 1e-9)


def test_ten_second_steps() -> None:
    """By hand: 5 of warm-up in 50 s, 6 in 60 s without the profiler, set-up, 5 light in 50 s, set-up, 3 detailed."""
    agenda, moments = walked(Schedule(), step_s=10.0)
    assert agenda.step == 5 + 6 + 1 + 5 + 1 + 3
    assert ("close", "untraced") in [moment[1:] for moment in moments]


def test_the_plan_passes_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan("/runs/a b", 42, Schedule(1, 2, 3, 4, 5.5), end_when_full=False, ranks=(0, 7), live="/runs/a b/live")
    monkeypatch.setenv(VARIABLE, plan.as_environment())
    assert Plan.from_environment() == plan
    assert [plan.records(rank) for rank in (0, 1, 7)] == [True, False, True]
    monkeypatch.delenv(VARIABLE)
    assert Plan.from_environment() is None
