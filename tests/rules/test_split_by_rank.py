"""Subsets that differ between ranks: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.loader import LoaderFacts


def loader(subset="a1", **changed):
    known = {"where": "train.py:60", "dataset_samples": 900, "distributed_sampler": True}
    return LoaderFacts(**{**known, "subset": subset, **changed})


def test_one_split_for_each_rank(ask, make_measured, make_facts):
    held_out = [loader(f"b{rank}", where="train.py:61") for rank in (0, 1)]
    ranks = [make_facts(rank=rank, loaders=[loader(f"a{rank}"), held_out[rank]]) for rank in (0, 1)]
    (advice,) = ask("DP511", make_measured(), ranks)
    assert advice.title == (
        "Each rank splits the data differently (train.py:60): samples that one rank holds out are trained on by others"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert [(one.value, one.unit) for one in advice.evidence] == [(2, "on 2 ranks"), (900, "")]
    assert "generator=" in advice.remedy


@pytest.mark.parametrize(
    "other",
    [
        loader("a1"),
        loader("b1", dataset_samples=800),  # ranks have data of their own
        loader("b1", distributed_sampler=False),
        loader(None),
        loader("b1", where="train.py:70"),
    ],
)
def test_quiet(ask, make_measured, make_facts, other):
    ranks = [make_facts(rank=rank, loaders=[each]) for rank, each in enumerate((loader(), other))]
    assert ask("DP511", make_measured(), ranks) == []
    assert ask("DP511", make_measured(), ranks[:1]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP511", make_measured(), [])
