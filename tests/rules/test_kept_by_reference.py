"""Weights that are kept without a copy: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.kept_weights import KeptWeightFacts


def kept(**changed):
    known = {"module": "Listener", "where": "train.py:72", "tensors": 8, "steps": 12}
    return KeptWeightFacts(**{**known, "held_by": "self.weights", "used_where": "train.py:92", **changed})


def test_what_keeps_weights_and_what_reads_them(ask, make_measured, make_facts):
    ranks = [make_facts(rank=rank, kept_weights=[kept()]) for rank in (0, 1)]
    (advice,) = ask("DP805", make_measured(), ranks)
    assert advice.title == (
        "`self.weights` keeps weights of `Listener` without a copy (train.py:72): training changes them, and "
        "train.py:92 reads them later"
    )
    assert "copy.deepcopy(model.state_dict())" in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert advice.threatens_results
    assert [one.value for one in advice.evidence] == [8, 12, "train.py:92"]


def test_medium_confidence_where_nothing_is_seen_to_read_them(ask, make_measured, make_facts):
    (advice,) = ask("DP805", make_measured(), [make_facts(kept_weights=[kept(held_by="", used_where=None)])])
    assert (
        advice.title
        == "A `state_dict()` keeps weights of `Listener` without a copy (train.py:72): training changes them"
    )
    assert advice.confidence == "medium"


def test_medium_confidence_where_only_the_source_shows_it(ask, make_measured, make_facts):
    unreached = kept(module="", tensors=0, steps=0)
    (advice,) = ask("DP805", make_measured(), [make_facts(kept_weights=[unreached])])
    assert advice.title.startswith("`self.weights` keeps weights without a copy (train.py:72)")
    assert advice.confidence == "medium"
    assert [(one.label, one.value) for one in advice.evidence] == [
        ("seen in the source only", "train.py:72"),
        ("read later at", "train.py:92"),
    ]


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP805", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP805", make_measured(), [])
