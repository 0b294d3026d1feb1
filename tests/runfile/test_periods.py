"""Periods of some steps, and none by chance."""

from __future__ import annotations

import random

import pytest

from dptune.runfile.periods import periods


def every(*pairs, steps):
    return {at for period, first in pairs for at in range(first, steps, period)}


@pytest.mark.parametrize("steps", [20, 25, 40])
@pytest.mark.parametrize("pairs", [[(4, 3)], [(5, 4), (4, 3)], [(2, 1)], [(6, 0)], [(3, 2), (5, 1)]])
def test_periods_are_found_with_their_first_step(pairs, steps):
    found = periods(every(*pairs, steps=steps), steps)
    assert sorted((one.every, one.first) for one in found) == sorted(pairs)
    assert {at for one in found for at in one.steps} == every(*pairs, steps=steps)


def test_one_may_be_missing_and_not_two():
    due = every((5, 4), steps=40)
    assert [(one.every, len(one.steps)) for one in periods(due - {19}, 40)] == [(5, 7)]
    assert periods(due - {14, 29}, 40) == []


@pytest.mark.parametrize("meant", [[], [3], [4, 14], range(12), [2, 3, 4]])
def test_fewer_than_three_at_one_distance_have_none(meant):
    assert periods(list(meant), 12) == []


@pytest.mark.parametrize("meant", [4, 7, 10])
def test_steps_drawn_at_random_have_none(meant):
    """At most 5 in 100 by the length of the description: of 400 draws 20, and 34 are 3.2 deviations more."""
    draw = random.Random(meant)
    assert sum(bool(periods(draw.sample(range(25), meant), 25)) for _ in range(400)) <= 34
