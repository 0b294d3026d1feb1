"""Where the longest stretch of each kind of time lies: by hand, and against a search through every nanosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measure.device.longest import longer, place
from dptune.measure.intervals import Intervals
from dptune.measure.steps.windows import Step
from dptune.measured import CLASSES, Place

from .. import reading  # noqa: TID252 - tests are no installed package

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SPAN = 40


def intervals(*pieces: tuple[int, int]) -> Intervals:
    return Intervals.union(np.array([one[0] for one in pieces]), np.array([one[1] for one in pieces]))


def test_only_what_lies_in_a_step_counts() -> None:
    """The longest piece, [0, 50), has 8 ns in a step; that of 20 ns lies there whole."""
    time = intervals((0, 50), (60, 80), (85, 90))
    steps = [Step(3, 42, 70), Step(4, 75, 100)]
    assert place(5, time, steps) == Place(rank=5, start_ns=60, end_ns=70)
    assert place(5, time, [Step(3, 42, 100)]) == Place(rank=5, start_ns=60, end_ns=80)
    assert place(5, time, [Step(3, 50, 60)]) is None
    assert place(5, time, []) is None


def test_the_longer_of_two() -> None:
    short, long = Place(rank=0, start_ns=5, end_ns=6), Place(rank=1, start_ns=0, end_ns=2)
    assert longer(short, long) == longer(long, short) == longer(long, None) == longer(None, long) == long
    assert longer(None, None) is None


PIECES = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(sorted).map(tuple), max_size=6)


@given(PIECES, st.lists(st.integers(0, SPAN), min_size=2, max_size=6, unique=True).map(sorted), st.booleans())
def test_nothing_longer_lies_in_one_step(pieces: list[tuple[int, int]], cuts: list[int], touching: bool) -> None:
    steps = [Step(at, cuts[at], cuts[at + 1]) for at in range(0, len(cuts) - 1, 1 if touching else 2)]
    runs = []
    for step in steps:
        row = "".join(
            "x" if any(low <= at < high for low, high in pieces) else " " for at in range(step.start_ns, step.end_ns)
        )
        runs += row.split()
    found = place(0, intervals(*pieces), steps)
    assert (found.length_ns if found else 0) == max(map(len, runs), default=0)
    if found:
        assert all(any(low <= at < high for low, high in pieces) for at in range(found.start_ns, found.end_ns))
        assert any(step.start_ns <= found.start_ns and found.end_ns <= step.end_ns for step in steps)


@pytest.mark.long
def test_the_longest_gap_of_a_cause_is_no_longer_than_the_steps_have_of_it() -> None:
    _, report = reading.sample("starved_loader")
    measured = report.measured
    for name, where in measured.longest.items():
        if name.endswith("_ns"):
            (rank,) = [one for one in measured.ranks if one.rank == where.rank]
            (step,) = [
                one.account
                for own in rank.devices
                for one in own.steps
                if one.start_ns <= where.start_ns < one.start_ns + one.account.window_ns
            ]
            assert 0 < where.length_ns <= getattr(step, name)
    assert {name for name in measured.longest if name.endswith("_ns")} == {
        name for name in type(measured.account).model_fields if name in CLASSES and getattr(measured.account, name)
    }
    assert measured.where("input_idle_ns") == measured.longest["input_idle_ns"]
    assert measured.where("nothing of that name") is None


@pytest.mark.long
def test_where_a_rank_is_late_is_its_latest_step() -> None:
    _, report = reading.sample("accumulation_without_no_sync")
    own = next(one for one in report.measured.ranks if one.rank == 0)
    latest = max(own.arrival.steps, key=lambda one: one.lag_ns)
    step = next(one for one in own.devices[0].steps if one.number == latest.number)
    where = report.measured.where_late(0)
    assert where == Place(rank=0, start_ns=step.start_ns, end_ns=step.start_ns + step.account.window_ns)
    assert report.measured.where_late(99) is None
