"""Targets that keep their gradients: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.bootstrapped_targets import BootstrappedTargetFacts


def target(passes=4, seen=4, where="train.py:17", sign="episode ends"):
    return BootstrappedTargetFacts("MseLossBackward0", 0.99, 6, where, "train.py:18", passes, seen, sign)


def test_a_target_with_gradients(ask, make_measured, make_facts):
    ranks = [make_facts(rank=rank, bootstrapped_targets=[target()] if rank else []) for rank in (0, 1)]
    (advice,) = ask("DP313", make_measured(), ranks)
    assert advice.title == (
        "Gradients flow through the target `reward + 0.99 * value` (train.py:17): each step also changes the value of "
        "the next state"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "medium")
    assert [found.value for found in advice.evidence] == [4, 6, "a mask of episode ends", "train.py:18"]
    assert advice.remedy.startswith("Compute the target under `torch.no_grad()`")


def test_what_may_be_the_residual_of_an_equation(ask, make_measured, make_facts):
    """It gives way to a loss that is known to have a target, and has low confidence without one."""
    unknown = target(passes=5, seen=5, where="train.py:40", sign="")
    (advice,) = ask("DP313", make_measured(), [make_facts(bootstrapped_targets=[unknown])])
    assert advice.title == (
        "Gradients flow through both sides of a loss that compares a value with `constant + 0.99 * value` "
        "(train.py:40): possibly a temporal-difference target"
    )
    assert (advice.impact, advice.confidence) == ("medium", "low")
    assert advice.remedy.startswith("If this is a temporal-difference target: compute the")
    (advice,) = ask("DP313", make_measured(), [make_facts(bootstrapped_targets=[unknown, target()])])
    assert (advice.impact, advice.confidence) == ("high", "medium")


def test_the_line_of_the_loss_where_that_of_the_target_is_not_known(ask, make_measured, make_facts):
    (advice,) = ask("DP313", make_measured(), [make_facts(bootstrapped_targets=[target(where=None)])])
    assert "(train.py:18)" in advice.title


@pytest.mark.parametrize("found", [[], [target(passes=1)], [target(passes=0, seen=0)], [target(seen=3)]])
def test_quiet(ask, make_measured, make_facts, found):
    assert ask("DP313", make_measured(), [make_facts(bootstrapped_targets=found)]) == []


def test_traces_alone_do_not_show_it(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP313", make_measured(), [])


@pytest.mark.parametrize("discount", [float("nan"), 1e308, 1.0, 0.0])
def test_a_discount_that_is_none(ask, make_measured, make_facts, discount):
    facts = target()
    facts.discount = discount
    assert ask("DP313", make_measured(), [make_facts(bootstrapped_targets=[facts])]) == []
