"""16-bit weights that lose their updates: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.lost_updates import LostUpdateFacts


def lost(unchanged=(900, 880, 910), sampled=(1000, 1000, 1000), **changed):
    known = {"optimizer": "AdamW", "where": "train.py:32", "dtype": "bfloat16", "parameters": 5000}
    return LostUpdateFacts(
        **{**known, "learning_rate": 1e-5, "sampled": list(sampled), "unchanged": list(unchanged), **changed}
    )


def test_the_line_that_makes_the_optimizer_and_the_share(ask, make_measured, make_facts):
    (advice,) = ask("DP406", make_measured(), [make_facts(lost_updates=[lost()])])
    assert advice.title == (
        "AdamW (train.py:32) leaves 88 % of its bfloat16 weights unchanged in each step, although they have gradients: "
        "rounding loses the updates"
    )
    assert "2^-9" in advice.why
    assert "torch.autocast" in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "medium", None)
    assert [one.value for one in advice.evidence] == [0.88, 1000, 3, 5000, 1e-5, "train.py:32"]


def test_float16_has_a_limit_of_its_own(ask, make_measured, make_facts):
    (advice,) = ask("DP406", make_measured(), [make_facts(lost_updates=[lost(dtype="float16")])])
    assert "2^-12" in advice.why


def test_shards_are_counted_together(ask, make_measured, make_facts):
    """(500 + 100) of 1,200 and (600 + 150) of 1,500 are half of all; the third step was counted by one rank only."""
    ranks = [
        make_facts(rank=0, lost_updates=[lost((500, 600, 1), (1000, 1000, 1000))], fsdp=[FsdpFacts(version=2)]),
        make_facts(rank=1, lost_updates=[lost((100, 150), (200, 500))], fsdp=[FsdpFacts(version=2)]),
    ]
    (advice,) = ask("DP406", make_measured(), ranks)
    assert [one.value for one in advice.evidence][:3] == [0.5, 1200, 2]
    assert "MixedPrecisionPolicy" in advice.remedy


@pytest.mark.parametrize(
    "facts",
    [
        lost(unchanged=(900, 499, 900)),  # not in each step
        lost(unchanged=(900,), sampled=(1000,)),  # a single step
        lost(unchanged=(90, 90), sampled=(99, 99)),  # too few to judge
        lost(unchanged=(), sampled=()),
    ],
)
def test_quiet(ask, make_measured, make_facts, facts):
    assert ask("DP406", make_measured(), [make_facts(lost_updates=[facts])]) == []
    assert ask("DP406", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP406", make_measured(), [])
