"""Ranks with different numbers of batches in an epoch: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.loader import LoaderFacts


def ranks(make_facts, lengths, *, drawn=20, ddp=True, where="train.py:8", **known):
    known = {"planned_epochs": 3, **known}
    small = LoaderFacts("train.py:30", batches_drawn=1, epoch_length=5)
    return [
        make_facts(
            rank=rank,
            ddp=[DdpFacts("Net")] if ddp else [],
            loaders=[small, LoaderFacts(where, batches_drawn=drawn, epoch_length=length, iterated_at="train.py:12")],
            **known,
        )
        for rank, length in enumerate(lengths)
    ]


def test_the_shortest_and_the_longest_rank(ask, make_measured, make_facts):
    (advice,) = ask("DP513", make_measured(), ranks(make_facts, [40, 38, 41]))
    assert advice.title == (
        "Rank 1 has 38 batches per epoch and rank 2 has 41 (train.py:8): "
        "training can hang at the end of the first epoch"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.threatens_results) == (
        "risk",
        "high",
        "medium",
        False,
    )
    assert [found.value for found in advice.evidence] == [38, 41, "train.py:12"]


@pytest.mark.parametrize(
    ("lengths", "known"),
    [
        ([40, 40], {}),
        ([40], {}),
        ([40, 38], {"planned_epochs": None}),  # no loop over epochs is known
        ([40, 38], {"joins": True}),
        ([40, 38], {"ends_early": True}),
        ([40, 38], {"ddp": False}),
        ([40, 38], {"engine": "deepspeed"}),
        ([40, None], {}),
        ([40, 15], {"drawn": 20}),  # it went on after its epoch
    ],
)
def test_quiet(ask, make_measured, make_facts, lengths, known):
    assert ask("DP513", make_measured(), ranks(make_facts, lengths, **known)) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP513", make_measured(), [])
