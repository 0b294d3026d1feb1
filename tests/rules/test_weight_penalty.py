"""Squares of weights in the loss: facts and figures are made up."""

from dataclasses import replace

import pytest

from dptune.measured import MemoryBoundFunction, Missing, OperatorCost, UserCodeFigures
from dptune.rule import RunView
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.weight_penalties import WeightPenaltyFacts
from dptune.testing import measured_run

from .conftest import RULES

PENALTY = WeightPenaltyFacts("Trainer.squares (train.py:67)", tensors=10, elements=2_000_000, passes=3, passes_seen=3)


def function(name="squares", at="train.py:66", **shares):
    costs = [OperatorCost(name=f"aten::{name}", calls=10, size=[], share=share) for name, share in shares.items()]
    return MemoryBoundFunction(
        name=name,
        at=at,
        calls=20,
        rank=0,
        cost_ns=1,
        backward_ns=1,
        share=sum(shares.values()),
        runs=1,
        operators=costs,
        calls_backward=False,
    )


@pytest.fixture
def ask(make_facts):
    def asked(*found, penalty=PENALTY, optimizer="SGD", clips=False, times_hold=True):
        code = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[], clips=clips, memory_bound=list(found))
        facts = make_facts(weight_penalty=penalty, optimizers=[OptimizerFacts(optimizer)])
        return list(RULES["DP623"].check(RunView(measured_run(user_code=code), [facts], times_hold=times_hold)))

    return asked


def test_the_function_its_squares_and_the_optimizer(ask):
    (advice,) = ask(function(pow=0.2, sum=0.03, add=0.3))
    assert advice.title == (
        "`Trainer.squares` (train.py:67) computes an L2 penalty on 10 weight tensors, 23 % of the step with "
        "the backward pass: use weight_decay of SGD"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert advice.saves.high_share == pytest.approx(0.23)
    assert "weight_decay is 2 * factor" in advice.watch
    assert ask(function(pow=0.2), times_hold=False)[0].confidence == "low"


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"optimizer": "AdamW"}, "may not be an L2 penalty"), ({"clips": True}, "after gradients are clipped")],
)
def test_where_training_differs(ask, changed, words):
    (advice,) = ask(function(pow=0.2), **changed)
    assert advice.numerics == "changes"
    assert words in advice.watch


@pytest.mark.parametrize(
    ("found", "penalty"),
    [
        (function(pow=0.04), PENALTY),
        (function(add=0.2), PENALTY),
        (function(name="other", pow=0.2), PENALTY),
        (function(at="model.py:66", pow=0.2), PENALTY),
        (function(pow=0.2), replace(PENALTY, passes=1)),  # not in every pass
        (function(pow=0.2), replace(PENALTY, function=None)),
        (function(pow=0.2), None),
    ],
)
def test_quiet(ask, found, penalty):
    assert ask(found, penalty=penalty) == []


def test_traces_alone_do_not_say():
    with pytest.raises(Missing):
        list(RULES["DP623"].check(RunView(measured_run(), [])))
