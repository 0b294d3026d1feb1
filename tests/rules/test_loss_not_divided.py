"""Gradients of micro-batches that nothing divides: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.clipping import ClippingFacts
from dptune.runfile.undivided_losses import UndividedLossFacts

SUMMED = UndividedLossFacts(
    "SGD", passes=4, steps=3, undivided=3, drawn=True, where="train.py:8", step_where="train.py:10"
)


def test_sgd_steps_are_larger(ask, make_measured, make_facts):
    (advice,) = ask("DP310", make_measured(), [make_facts(undivided_losses=[SUMMED]), make_facts(rank=1)])
    assert advice.title == (
        "Gradients of 4 micro-batches are summed, not averaged (train.py:8): SGD uses 4 times the mean gradient"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.threatens_results) == ("risk", "high", "high", True)
    assert [found.value for found in advice.evidence] == [4, 3, "train.py:10"]
    assert advice.remedy == "Divide the loss by 4 before the backward pass (train.py:8)."


def test_adam_cancels_the_factor_but_for_clipping(ask, make_measured, make_facts):
    adam = UndividedLossFacts(**{**vars(SUMMED), "optimizer": "AdamW"})
    (advice,) = ask("DP310", make_measured(), [make_facts(undivided_losses=[adam])])
    assert (advice.impact, advice.title.rpartition(": ")[2]) == ("low", "AdamW mostly cancels the factor of 4")
    clipping = [ClippingFacts("train.py:9", "AdamW"), ClippingFacts("train.py:19", "SGD")]
    (advice,) = ask("DP310", make_measured(), [make_facts(undivided_losses=[adam], clipping=clipping)])
    assert advice.impact == "medium"
    assert advice.title.endswith("clipping (train.py:9) limits 4 times the mean gradient")


def test_without_a_loader_batches_are_not_known(ask, make_measured, make_facts):
    found = UndividedLossFacts(**{**vars(SUMMED), "drawn": False})
    (advice,) = ask("DP310", make_measured(), [make_facts(undivided_losses=[found])])
    assert advice.confidence == "medium"


@pytest.mark.parametrize("changed", [{"undivided": 2}, {"undivided": 0}, {"steps": 1, "undivided": 1}])
def test_quiet(ask, make_measured, make_facts, changed):
    found = UndividedLossFacts(**{**vars(SUMMED), **changed})
    assert ask("DP310", make_measured(), [make_facts(undivided_losses=[found])]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP310", make_measured(), [])
