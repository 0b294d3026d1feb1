"""The order of the trials, and what their first losses say."""

from itertools import islice

import pytest

from dptune.prove.numerics import learning
from dptune.prove.order import following, sides
from dptune.prove.result import Trial


def trial(side, *losses, status="ran"):
    return Trial(
        number=1,
        side=side,
        status=status,
        began="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        step_ns=1,
        fast_step_ns=1,
        losses=losses,
        missing={"samples_per_step": "none"},
    )


def test_each_pair_has_both_sides_and_either_comes_first():
    order = list(islice(sides(7), 40))
    pairs = list(zip(order[::2], order[1::2], strict=True))
    assert all(set(pair) == {"A", "B"} for pair in pairs)
    assert {pair[0] for pair in pairs} == {"A", "B"}
    assert order == list(islice(sides(7), 40)) != list(islice(sides(8), 40))


def test_it_goes_on_where_it_stopped():
    whole = list(islice(sides(3), 12))
    done = [trial(side) for side in whole[:5]]
    assert list(islice(following(3, done), 7)) == whole[5:]


@pytest.mark.parametrize(
    ("a", "b", "numerics", "outcome"),
    [
        ([(1.0, 0.9), (1.0, 0.9)], [(1.0, 0.9)], "same", "alike"),
        ([(1.0, 0.9), (1.0, 0.9)], [(1.0, 0.9005)], "same", "alike"),  # 0.0006 of it
        ([(1.0, 0.9), (1.0, 0.9)], [(1.0, 0.91)], "same", "other"),
        ([(1.0, 0.9), (1.0, 0.9)], [(1.0, 0.91)], "changes", "alike"),
        ([(1.0, 0.9), (1.0, 0.9)], [(1.0, 0.99)], "changes", "other"),
        ([(1.0, 0.9), (1.0, 0.89)], [(1.0, 0.91)], "same", "alike"),  # three times what A itself differs by
        ([(1.0, 0.9), (1.3, 0.7)], [(1.0, 0.9)], "same", "not known"),
        ([(1.0, 0.9), (1.0, 0.9)], [(1.0, float("nan"))], "changes", "other"),
        ([(float("inf"),), (1.0,), (float("inf"),)], [(1.0,)], "same", "not known"),
        ([(1.0,)], [(1.0,)], "same", "not known"),
        ([(), ()], [(1.0,)], "same", "not known"),
    ],
)
def test_losses_of_b_are_those_of_a_within_what_is_allowed(a, b, numerics, outcome):
    trials = [trial("A", *losses) for losses in a] + [trial("B", *losses) for losses in b]
    assert learning(trials, numerics).outcome == outcome


def test_trials_that_failed_and_losses_that_are_no_numbers_hide_nothing():
    a = [trial("A", 0.8, 0.7, 0.6)] * 3
    diverging = [trial("B", 0.8, 3.0, 9.0)] * 6
    cut = trial("B", 0.8, status="failed")
    assert learning([*a, *diverging, cut], "changes").outcome == "other"
    one_nan = [trial("B", 0.8, 0.7, 0.6)] * 4 + [trial("B", 0.8, float("nan"), 0.6)]
    assert learning([*a, *one_nan], "changes").outcome == "other"
    crossing = learning([trial("A", 0.8, 1e-6)] * 2 + [trial("B", 0.8, 2e-6)], "same")
    assert crossing.outcome == "alike"
    assert learning([*a, cut], "same").reason.startswith("no trial of one side finished")
    other = learning([*a, *diverging], "other draws")
    assert (other.outcome, "different samples" in other.reason) == ("not known", True)


def test_the_figures_are_relative_to_the_loss():
    found = learning([trial("A", 2.0, 4.0), trial("A", 2.0, 4.0), trial("B", 2.0, 4.2)], "same")
    assert (found.difference, found.spread) == (pytest.approx(0.05), 0.0)
    assert "B's training results differ" in found.reason


def test_each_pass_is_held_against_its_own_loss():
    """Where the first loss is large, what comes after it still counts."""
    a = [trial("A", 11_297.0, 100.0, 0.0089)] * 3
    assert learning([*a, *[trial("B", 11_297.0, 100.0, 60.0)] * 3], "same").outcome == "other"
    assert learning([*a, *[trial("B", 11_297.0, 100.0, 0.0090)] * 3], "same").outcome == "alike"


def test_a_few_ruined_trials_of_b_are_enough():
    a = [trial("A", 2.3, 2.2, 2.1)] * 6
    found = learning([*a, *[trial("B", 2.3, 2.2, 2.1)] * 4, *[trial("B", 2.3, 50.0, 900.0)] * 2], "same")
    assert found.outcome == "other"
    assert "in 2 of 6 trials" in found.reason


def test_a_short_trial_hides_nothing():
    a = [trial("A", 2.3, 2.2, 2.1, 2.0)] * 6
    found = learning([*a, *[trial("B", 2.3, 9.0, 900.0, 900.0)] * 5, trial("B", 2.3)], "same")
    assert found.outcome == "other"
    assert "over the first 4 backward passes" in found.reason
    assert learning([trial("A", 2.3), trial("A", 2.3), *[trial("B", 2.3, 2.2, 2.1)] * 2], "same").outcome == "not known"


@pytest.mark.parametrize("odd", [(2.3, 2.2 * 1.04, 2.1), (2.3, float("nan"), 2.1)])
def test_one_odd_repeat_of_a_does_not_hide_b(odd):
    a = [*[trial("A", 2.3, 2.2, 2.1)] * 5, trial("A", *odd)]
    assert learning([*a, *[trial("B", 2.3, 50.0, 900.0)] * 6], "same").outcome == "other"
    assert learning([*a, *[trial("B", 2.3, 2.2, 2.1)] * 6], "same").outcome == "alike"
    one = learning([*a, *[trial("B", 2.3, 2.2, 2.1)] * 5, trial("B", 2.3, 50.0, 900.0)], "same")
    assert one.outcome == "not known"
    unseeded = [trial("A", 2.3, 2.2 + at / 10, 2.1) for at in range(6)]
    assert "sets no seed" in learning([*unseeded, *[trial("B", 2.3, 2.2, 2.1)] * 6], "same").reason


def test_a_loss_that_is_no_number_is_other_also_where_draws_differ():
    a = [trial("A", 2.3, 2.2)] * 3
    assert learning([*a, trial("B", 2.3, float("inf")), trial("B", 2.3, 2.2)], "other draws").outcome == "other"
