"""Ranks that decide by scores of their own: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.decisions import DecisionFacts


@pytest.fixture
def ranks(make_facts):
    def made(*values, ddp=True, **what):
        models = [DdpFacts("Net")] if ddp else []
        return [
            make_facts(rank=rank, ddp=models, decisions=[DecisionFacts("train.py:9", "best", value, 40, **what)])
            for rank, value in enumerate(values)
        ]

    return made


def test_when_to_stop(ask, make_measured, ranks):
    (advice,) = ask("DP705", make_measured(), ranks(0.5, 0.625, ends=True))
    assert advice.title == (
        "Each rank decides when to stop by its own score (train.py:9): `best` is 0.5 to 0.625 on the ranks"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert [(found.value, found.rank) for found in advice.evidence] == [(0.5, 0), (0.625, 1), (40, None)]


def test_which_weights_to_keep_and_the_rate(ask, make_measured, ranks):
    (advice,) = ask("DP705", make_measured(), ranks(0.5, 0.625, keeps=True))
    assert "decides which weights to keep by its own score" in advice.title
    assert advice.impact == "medium"
    (advice,) = ask("DP705", make_measured(), ranks(0.5, 0.625))
    assert "decides its learning rate by its own score" in advice.title


def test_the_end_of_training_is_named_first(ask, make_measured, make_facts):
    keeps = DecisionFacts("train.py:9", "best", 0.5, 40, keeps=True)
    ends = DecisionFacts("train.py:12", "lowest", 0.5, 40, ends=True)
    facts = [
        make_facts(
            rank=rank,
            ddp=[DdpFacts("Net")],
            decisions=[DecisionFacts(**{**vars(each), "value": 0.5 + rank}) for each in (keeps, ends)],
        )
        for rank in range(2)
    ]
    (advice,) = ask("DP705", make_measured(), facts)
    assert "train.py:12" in advice.title


def test_quiet(ask, make_measured, ranks):
    assert ask("DP705", make_measured(), ranks(0.5, 0.5, ends=True)) == []
    assert ask("DP705", make_measured(), ranks(0.5, 0.50001, ends=True)) == []
    assert ask("DP705", make_measured(), ranks(0.5, ends=True)) == []
    assert ask("DP705", make_measured(), ranks(0.5, 0.625, ends=True, ddp=False)) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP705", make_measured(), [])
