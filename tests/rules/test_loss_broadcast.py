"""Losses that compare each prediction with each target: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.broadcast_losses import BroadcastLossFacts


def difference(**changed):
    known = {"operator": "sub", "where": "train.py:46", "predictions": [32, 1], "targets": [32]}
    return BroadcastLossFacts(**{**known, "passes": 3, "passes_seen": 3, **changed})


def test_the_line_and_both_shapes(ask, make_measured, make_facts):
    ranks = [make_facts(rank=rank, broadcast_losses=[difference()]) for rank in (0, 1)]
    (advice,) = ask("DP408", make_measured(), ranks)
    assert advice.title == (
        "The loss compares each prediction with the targets of all samples (train.py:46): predictions (32, 1) and "
        "targets (32,) broadcast to (32, 32)"
    )
    assert ".squeeze(-1) on the predictions" in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert advice.threatens_results
    assert [one.value for one in advice.evidence] == ["(32, 1)", "(32,)", 3, "sub", "train.py:46"]


def test_targets_that_are_a_column(ask, make_measured, make_facts):
    (advice,) = ask(
        "DP408", make_measured(), [make_facts(broadcast_losses=[difference(predictions=[8], targets=[8, 1])])]
    )
    assert "predictions (8,) and targets (8, 1) broadcast to (8, 8)" in advice.title
    assert ".squeeze(-1) on the targets" in advice.remedy


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP408", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP408", make_measured(), [])
