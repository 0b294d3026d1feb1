"""What DP305 and DP306 say of optimizers without new gradients."""

from __future__ import annotations

import pytest

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
    assert advice.watch.startswith(
        "Call optimizer.zero_grad() for each step before the backward pass (train.py:18); if"
    )
    (less_sure,) = said("DP305", kept=2)
    assert less_sure.confidence == "medium"
    assert less_sure.title.endswith(": 2 of 4 steps reuse old gradients")


def test_no_gradients(said):
    (advice,) = said("DP306", without=4, elsewhere=12, sharded=True)
    assert advice.title == "AdamW (train.py:9) changes nothing: none of its parameters had a gradient"
    assert (advice.confidence, advice.watch) == ("high", "Create the optimizer after the last fully_shard call.")
    (replaced,) = said("DP306", without=4, elsewhere=12)
    assert "after the model is complete" in replaced.watch
    (alone,) = said("DP306", without=4)
    assert (alone.confidence, alone.why) == (
        "medium",
        "Backward passes run, but give no parameter of this optimizer a gradient.",
    )
    (frozen,) = said("DP306", without=4, tensors=0)
    assert frozen.title.endswith(": none of its parameters requires gradients")


@pytest.mark.parametrize(
    "facts", [{}, {"kept": 1}, {"without": 3}, {"steps": 2, "kept": 1}, {"steps": 2, "without": 2}]
)
def test_quiet(said, facts):
    assert said("DP305", **facts) == said("DP306", **facts) == []
