"""Loops over operators: figures are made up."""

import pytest

from dptune.measured import OperatorLoop, UserCodeFigures
from dptune.runfile.facts import SampledFacts, Window


def looping(make_measured, basis="unprofiled", **changed):
    found = {
        "name": "nt_xent",
        "at": "loss.py:20",
        "phase": "forward",
        "operator": "aten::cosine_similarity",
        "repeats": 96.0,
        "rank": 1,
        "cost_ns": 1_200_000,
        "share": 0.12,
    }
    loop = OperatorLoop(**found | changed)
    return make_measured(user_code=UserCodeFigures(ranks=[0, 1], steps=2, basis=basis, sites=[], loops=[loop]))


def sampled(*lines, looks=5):
    """The training thread was found in these lines of the function, with more time in the later ones."""
    places = [
        SampledFacts(["main (train.py:9)", f"nt_xent (loss.py:{line})"], looks=looks, steps=[0], spent_ns=[at + 1])
        for at, line in enumerate(lines)
    ]
    return [Window("unprofiled", 3, [10_000_000] * 5, sampled=places)]


def test_the_function_the_operator_and_the_hottest_line(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured), [make_facts(windows=sampled(24, 26, 25))])
    assert advice.title == (
        "`nt_xent` (loss.py:25) calls aten::cosine_similarity 96 times in a Python loop, 12 % of the step: use one "
        "call for the whole batch"
    )
    # Its backward pass takes up to twice as long again.
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.36))
    assert (advice.confidence, advice.impact) == ("medium", "medium")


def test_beside_the_training_nothing_is_computed_backward(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured, phase="loop"), [make_facts(windows=sampled(25, looks=2))])
    assert advice.saves.high_share == pytest.approx(0.12)
    assert "`nt_xent` (loss.py:20)" in advice.title  # two looks may be chance


def test_results_that_need_no_gradient_have_no_backward_pass(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured, backward=False), [make_facts(windows=sampled(25))])
    assert advice.saves.high_share == pytest.approx(0.12)
    assert "backward" not in advice.why + advice.saves.how


def test_steps_with_the_profiler_tell_less(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured, basis="traced"), [make_facts()])
    assert advice.confidence == "low"


def test_quiet_where_it_takes_little(ask, make_measured, make_facts):
    assert ask("DP610", looping(make_measured, share=0.04), [make_facts()]) == []
