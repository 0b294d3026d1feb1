"""What a step saves without some work, from made-up shares and steps; figures by hand."""

from __future__ import annotations

import pytest

from dptune.runfile.removed import Share, saved_share, saved_share_of_steps

EVEN = {0: [80.0, 80.0], 1: [80.0, 80.0]}


def test_what_every_rank_does_is_saved():
    """Both ranks are busy for 80 of 100; without 20 and 30 of it they are for 60 and 50: 20 is saved."""
    found = saved_share({0: Share(0.15, 0.2, 0.25), 1: Share(0.2, 0.3, 0.4)}, EVEN, 100, 2)
    # At least 0.15: 80 less 15 and less 20 leaves 65. At most the 0.4 of either rank.
    assert found == (pytest.approx(0.15), pytest.approx(0.2), 0.4)


def test_what_one_rank_does_is_saved_down_to_the_next_busiest():
    """Rank 0 is busy for 90, rank 1 for 60: of the 40 that rank 0 saves, 30 shorten the step."""
    uneven = {0: [90.0, 90.0], 1: [60.0, 60.0]}
    assert saved_share({0: Share(0.35, 0.4, 0.5)}, uneven, 100, 2) == (pytest.approx(0.3), pytest.approx(0.3), 0.5)
    # The other way round the work is not on the critical path.
    assert saved_share({1: Share(0.35, 0.4, 0.5)}, uneven, 100, 2) == (0, 0, 0.5)


def test_the_lower_quartile_of_steps_counts_at_least():
    """Rank 1 is as busy as rank 0 in one step of four: by quartiles of 0, 30, 30 and 30 that is 7.5."""
    some = {0: [90.0] * 4, 1: [90.0, 60.0, 60.0, 60.0]}
    assert saved_share({0: Share(0.4, 0.4, 0.4)}, some, 100, 2).least == pytest.approx(0.075)


def test_where_busy_times_are_not_known_only_what_all_do_is_saved():
    found = saved_share({0: Share(0.15, 0.2, 0.25), 1: Share(0.2, 0.3, 0.4)}, None, 100, 2)
    assert found == (0.15, pytest.approx(0.25), 0.4)
    assert saved_share({0: Share(0.15, 0.2, 0.25)}, None, 100, 2).least == 0
    assert saved_share({0: Share(0.15, 0.2, 0.25)}, None, 100, 1) == (0.15, 0.2, 0.25)


def test_busy_times_of_different_numbers_of_steps_are_of_no_use():
    spent = {0: Share(0.15, 0.2, 0.25), 1: Share(0.2, 0.3, 0.4)}
    assert saved_share(spent, {0: [80.0, 80.0], 1: [80.0]}, 100, 2) == saved_share(spent, None, 100, 2)


def test_work_timed_in_each_step():
    """Of 4 steps of 100 each takes 20 on rank 0 and 10 on rank 1, which are busy for 80 and 75: 15 goes in each."""
    durations = {0: [100] * 4, 1: [100] * 4}
    busy = {0: [80.0] * 4, 1: [75.0] * 4}
    spent = {0: [20] * 4, 1: [10] * 4}
    found = saved_share_of_steps(spent, durations, busy)
    assert found == (pytest.approx(0.15), pytest.approx(0.175), pytest.approx(0.2))
    # Ranks that do it one after another hold each other up for 30.
    assert saved_share_of_steps(spent, durations, busy, in_turn=True).most == pytest.approx(0.3)
    # Where busy times are not known: 10, which both spend.
    assert saved_share_of_steps(spent, durations, None).least == pytest.approx(0.1)


def test_few_steps_are_unsure():
    """0 or 40 of 100, 8 steps: a mean of 20, sd 21.38, so 160 is unsure by 1.645 x 21.38 x sqrt(8) = 99.5."""
    found = saved_share_of_steps({0: [0, 0, 40, 40] * 2}, {0: [100] * 8}, None)
    assert (found.least, found.most) == (pytest.approx(0.0756, abs=1e-3), pytest.approx(0.3244, abs=1e-3))


def test_work_in_every_fourth_step_varies_by_its_amounts_and_not_by_chance():
    """20 steps of 100; 30 to 50 in each fourth: 200, sd 7.07, so it is unsure by 1.645 x 7.07 x sqrt(5) = 26."""
    amounts = [40, 30, 40, 50, 40]
    found = saved_share_of_steps({0: [ns for each in amounts for ns in (each, 0, 0, 0)]}, {0: [100] * 20}, None)
    assert (found.least, found.most) == (pytest.approx(0.087, abs=1e-3), pytest.approx(0.113, abs=1e-3))


def test_a_window_may_hold_one_more_of_such_steps_than_the_usual_one():
    """Of 20 steps each sixth from the first on takes 40: 4 steps, where 20 steps hold 3 1/3 on average."""
    found = saved_share_of_steps({0: ([40] + [0] * 5) * 3 + [40, 0]}, {0: [100] * 20}, None)
    assert (found.least, found.likely) == (pytest.approx((160 - 40 * 2 / 3) / 2000), pytest.approx(0.08))
