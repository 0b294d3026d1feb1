"""Results that nothing reads: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.repeated_forward import RepeatedForwardFacts
from dptune.runfile.same_results import UnreadResultFacts

MS = 1_000_000


def unread(spent_ms=2, function="Trainer.compute_loss (train.py:31)", steps=2, **more):
    """Steps of 10 ms, 5 of them in operators outside of backward passes."""
    times = {"step_ns": [10 * MS] * steps, "again_ns": [spent_ms * MS] * steps, "forward_ns": [5 * MS] * steps}
    return UnreadResultFacts(function, ["cross_entropy", "view"], **{"calls": 3, **times, **more})


@pytest.fixture
def advice(ask, make_measured, make_facts):
    def found(*facts, repeated=(), **measured):
        run = make_measured(**{"device": "cpu", "world": 1, **measured})
        return ask("DP627", run, [make_facts(unread_results=[*facts], repeated_forward=[*repeated])])

    return found


def test_the_loss_of_a_library(advice):
    (found,) = advice(unread(library="transformers.GPT2LMHeadModel.forward"))
    assert found.title == (
        "`Trainer.compute_loss` (train.py:31) calls `transformers.GPT2LMHeadModel.forward`, which computes results "
        "that nothing reads (20 % of the step): call the model without labels"
    )
    assert (found.impact, found.confidence, found.numerics) == ("high", "medium", "same")
    assert (found.saves.basis, found.saves.predicted_share) == ("timed", pytest.approx(0.2))
    assert (found.saves.low_share, found.saves.high_share) == pytest.approx((0.8 * 0.2, 1.3 * 0.2))


def test_a_branch_of_the_script(advice):
    (found,) = advice(unread(function="Net.forward (train.py:31)"))
    assert found.title == (
        "`Net.forward` (train.py:31) computes results that nothing reads (20 % of the step): leave them out "
        "(cross_entropy, view)"
    )
    assert found.fingerprint == "DP627:Net.forward:"


def test_outside_of_functions(advice):
    (found,) = advice(unread(function="train.py:31"))
    assert found.title.startswith("train.py:31 computes results that nothing reads (20 % of the step): ")
    assert found.fingerprint == "DP627:train.py:"


def test_a_small_share_is_left_alone(advice):
    assert advice(unread(spent_ms=0.1)) == []


def test_a_pass_that_repeated_forward_names(advice):
    again = RepeatedForwardFacts("Net", trained=True, unused=True, lines=["train.py:20", "train.py:31"])
    assert advice(unread(), repeated=[again]) == []
    assert len(advice(unread(), repeated=[RepeatedForwardFacts("Net", lines=["train.py:31"])])) == 1


def test_one_step_is_a_bound_of_low_confidence(advice):
    (found,) = advice(unread(steps=1))
    assert (found.saves.basis, found.confidence) == ("bound", "low")


def test_without_facts_the_rule_is_skipped(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP627", make_measured(), [])


@pytest.mark.parametrize(
    "times",
    [
        {"step_ns": []},
        {"step_ns": [10 * MS] * 3},
        {"again_ns": [2 * MS]},
        {"forward_ns": [5 * MS]},
        {"step_ns": [0, 10 * MS]},
        {"again_ns": [20 * MS] * 2},
    ],
)
def test_times_that_are_not_of_the_same_steps(advice, times):
    assert advice(unread(**times)) == []


def test_functions_that_were_watched_in_different_steps(advice):
    """The same function and library, by two facts: no saving is predicted, and the upper bound stays."""
    found = advice(unread(), unread(steps=3))
    assert {each.saves.basis for each in found} == {"bound"}
