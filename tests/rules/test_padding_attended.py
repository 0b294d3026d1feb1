"""Attention that attends to padding: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.padded_attention import PaddedAttentionFacts

TITLE = "Attention {} to padding: {} gives 44 % of its weight to it in the sequences with most padding"


def attention(**changed):
    known = {"where": "train.py:20", "layers": 2, "positions": 32, "padding_share": 0.5, "weight_share": 0.4375}
    return PaddedAttentionFacts(**{**known, "padding_idx": True, "passes": 3, "passes_seen": 4, **changed})


def test_attention_without_a_mask(ask, make_measured, make_facts):
    (advice,) = ask("DP320", make_measured(), [make_facts(rank=at, padded_attention=[attention()]) for at in (0, 1)])
    assert advice.title == TITLE.format("attends", "self-attention (train.py:20)")
    assert "src_key_padding_mask" in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    values = [0.4375, 0.5, 32, "0, the embedding's padding_idx", 2, 3, "train.py:20"]
    assert [each.value for each in advice.evidence] == values
    assert advice.evidence[5].unit == "of 4"


def test_attention_of_other_queries_is_named_apart(ask, make_measured, make_facts):
    cross = attention(kind="cross", where=None, filler=3, padding_idx=False)
    both = ask("DP320", make_measured(), [make_facts(padded_attention=[attention(), cross])])
    assert both[1].title == TITLE.format("may attend", "cross-attention")
    assert "memory_key_padding_mask" in both[1].remedy
    assert both[1].evidence[3].value == "3"
    assert len({advice.fingerprint for advice in both}) == 2


@pytest.mark.parametrize(
    ("known", "confidence"),
    [
        ({"padding_idx": True}, "high"),
        ({"padding_idx": False, "certain": True}, "high"),
        ({"padding_idx": False, "filler": 7}, "medium"),
        ({"padding_idx": False, "filler": 7, "left": True}, "medium"),
    ],
)
def test_an_id_that_nothing_shows_to_be_padding_may_be_a_token(ask, make_measured, make_facts, known, confidence):
    (advice,) = ask("DP320", make_measured(), [make_facts(padded_attention=[attention(**known)])])
    assert advice.confidence == confidence
    side = "start" if known.get("left") else "end"
    assert (f"If id 7 at the {side} of sequences is a token" in advice.watch) == (confidence == "medium")


def test_queries_before_all_tokens_attend_to_nothing_under_a_causal_mask(ask, make_measured, make_facts):
    found = [[attention(left=left, kind=kind)] for left, kind in ((True, "self"), (False, "self"), (True, "cross"))]
    advice = [ask("DP320", make_measured(), [make_facts(padded_attention=each)])[0] for each in found]
    assert ["NaN" in each.remedy for each in advice] == [True, False, False]


def test_all_weight_on_padding_is_of_an_inverted_mask(ask, make_measured, make_facts):
    found = [
        ask("DP320", make_measured(), [make_facts(padded_attention=[attention(weight_share=share)])])
        for share in (1.0, 0.9)
    ]
    assert ["inverted" in advice.why for (advice,) in found] == [True, False]


def test_a_single_pass_is_not_enough(ask, make_measured, make_facts):
    assert ask("DP320", make_measured(), [make_facts(padded_attention=[attention(passes=1)])]) == []
    assert ask("DP320", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_show_it(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP320", make_measured(), [])
