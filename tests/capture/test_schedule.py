from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.capture.injected.plan import VARIABLE, Plan
from dptune.runfile.record import Schedule

_agenda = pytest.importorskip("dptune.capture.injected.recorder", reason="the recorder needs torch")._agenda
COUNTS = st.integers(min_value=0, max_value=50)


@given(st.builds(Schedule, warmup=COUNTS, unprofiled=COUNTS, lean=COUNTS, rich=COUNTS))
def test_windows_follow_one_another_and_end_where_the_plan_says(schedule: Schedule) -> None:
    plan = Plan("folder", 1, schedule)
    moments = [(step, *moment) for step, due in sorted(_agenda(plan).items()) for moment in due]
    opened = {window: step for step, action, window in moments if action == "open"}
    closed = {window: step for step, action, window in moments if action == "close"}
    for window in ("unprofiled", "lean", "rich"):
        length = getattr(schedule, window)
        assert (window in opened) == (length > 0)
        if length:
            assert closed[window] - opened[window] == length
    assert [action for _, action, _ in moments].count("end") == 1
    assert min(step for step, *_ in moments) >= 1
    assert moments[-1][:2] == (schedule.total_steps, "end")
    for (_, action, window), (_, next_action, next_window) in itertools.pairwise(moments):
        if action in ("prepare", "open"):
            assert (next_action, next_window) == ("open" if action == "prepare" else "close", window)


def test_the_plan_passes_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan("/runs/a b", 42, Schedule(1, 2, 3, 4), end_when_full=False)
    monkeypatch.setenv(VARIABLE, plan.as_environment())
    assert Plan.from_environment() == plan
    monkeypatch.delenv(VARIABLE)
    assert Plan.from_environment() is None
