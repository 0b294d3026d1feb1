"""What DP305 and DP306 say of optimizers without new gradients."""

from __future__ import annotations

import pytest

from dptune.runfile.discarded_gradients import DiscardedGradientFacts
from dptune.runfile.optimizer_gradients import OptimizerGradientFacts

AT = {"where": "train.py:9", "step_where": "train.py:20", "backward_where": "train.py:18"}


@pytest.fixture
def said(ask, make_measured, make_facts):
    def of(code, **facts):
        found = OptimizerGradientFacts("AdamW", **{**AT, "tensors": 12, "steps": 4, **facts})
        return ask(code, make_measured(), [make_facts(optimizer_gradients=[found])])

    return of


def test_kept_gradients(said):
    (advice,) = said("DP305", kept=3)
    assert advice.title == (
        "Gradients are not cleared between steps of AdamW (train.py:20): each step reuses old gradients"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert advice.remedy.startswith(
        "Call optimizer.zero_grad() for each step before the backward pass (train.py:18); if"
    )
    (less_sure,) = said("DP305", kept=2)
    assert less_sure.confidence == "medium"
    assert less_sure.title.endswith(": 2 of 4 steps reuse old gradients")


def test_gradients_of_another_optimizers_loss(said):
    (advice,) = said("DP305", of_others=3, others_where="train.py:14")
    assert advice.title == (
        "Steps of AdamW (train.py:20) also use gradients of another optimizer's loss, which are not cleared after the "
        "step at train.py:14"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert advice.remedy == "Call zero_grad() of this optimizer before its backward pass (train.py:18)."
    assert said("DP305", of_others=3, others_where="train.py:14", kept=3)[0].title.startswith("Gradients are not")
    assert said("DP305", of_others=1) == []


def test_no_gradients(said):
    (advice,) = said("DP306", without=4, elsewhere=12, alike=True, sharded=True)
    assert advice.title == "AdamW (train.py:9) changes nothing: none of its parameters had a gradient"
    assert (advice.confidence, advice.remedy) == ("high", "Create the optimizer after the last fully_shard call.")
    (replaced,) = said("DP306", without=4, elsewhere=12)
    assert (replaced.confidence, "after the model is complete" in replaced.remedy) == ("high", True)
    (alone,) = said("DP306", without=4)
    assert (alone.confidence, alone.why) == (
        "medium",
        "Backward passes run, but give no parameter of this optimizer a gradient.",
    )
    (frozen,) = said("DP306", without=4, tensors=0)
    assert frozen.title.endswith(": none of its parameters requires gradients")


@pytest.mark.parametrize(
    ("facts", "confidence", "impact"),
    [
        ({"elsewhere": 12, "alike": True}, "high", "high"),
        ({"elsewhere": 12}, "low", "medium"),  # parameters of a network for a perceptual loss, say
        ({}, "low", "medium"),  # a head whose turn has not come
        ({"cleared": True}, "low", "medium"),
    ],
)
def test_no_gradients_while_other_optimizers_train(said, facts, confidence, impact):
    (advice,) = said("DP306", without=4, others_train=True, **facts)
    assert (advice.confidence, advice.impact) == (confidence, impact)


def test_gradients_that_are_cleared_too_early(said, ask, make_measured, make_facts):
    (advice,) = said("DP306", without=4, cleared=True)
    assert advice.title.endswith("had a gradient when it stepped")
    assert advice.why == "Backward passes leave gradients in its parameters, but these are cleared before it steps."
    found = OptimizerGradientFacts("AdamW", **AT, tensors=12, steps=4, without=4, cleared=True)
    discarded = DiscardedGradientFacts("train.py:19", "train.py:18", passes=[1] * 4, discarded=[1] * 4)
    facts = make_facts(optimizer_gradients=[found], discarded_gradients=discarded)
    assert ask("DP306", make_measured(), [facts]) == []  # DP304 reports it
    assert len(ask("DP304", make_measured(), [facts])) == 1


def test_an_optimizer_with_gradients_on_another_rank_is_no_finding(ask, make_measured, make_facts):
    ranks = [OptimizerGradientFacts("AdamW", **AT, tensors=12, steps=4, without=without) for without in (4, 0)]
    assert ask("DP306", make_measured(), [make_facts(rank=n, optimizer_gradients=[ranks[n]]) for n in (0, 1)]) == []
    assert len(ask("DP306", make_measured(), [make_facts(rank=n, optimizer_gradients=[ranks[0]]) for n in (0, 1)])) == 1


@pytest.mark.parametrize(("code", "facts"), [("DP305", {"kept": 3}), ("DP306", {"without": 4})])
def test_optimizers_of_one_line_are_one_finding(code, facts, ask, make_measured, make_facts):
    """One for each parameter, which hooks step."""
    found = [OptimizerGradientFacts("AdamW", **AT, tensors=1, steps=4, **facts) for _ in range(8)]
    assert len(ask(code, make_measured(), [make_facts(optimizer_gradients=found)])) == 1


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"kept": 1},
        {"without": 3},
        {"steps": 2, "kept": 1},
        {"steps": 2, "without": 2},
        {"without": 4, "idle": True},
    ],
)
def test_quiet(said, facts):
    assert said("DP305", **facts) == said("DP306", **facts) == []
