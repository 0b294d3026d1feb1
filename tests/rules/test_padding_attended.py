"""Attention that attends to padding: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.padded_attention import PaddedAttentionFacts


def attention(**changed):
    known = {"where": "train.py:20", "layers": 2, "positions": 32, "padding_share": 0.5, "weight_share": 0.4375}
    return PaddedAttentionFacts(**{**known, "padding_idx": True, "passes": 3, "passes_seen": 4, **changed})


def test_attention_without_a_mask(ask, make_measured, make_facts):
    (advice,) = ask("DP320", make_measured(), [make_facts(rank=at, padded_attention=[attention()]) for at in (0, 1)])
    assert advice.title == "Padding mask missing: self-attention (train.py:20) gives 44 % of its weight to padding"
    assert "src_key_padding_mask" in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    values = [0.4375, 0.5, 32, "0, the embedding's padding_idx", 2, 3, "train.py:20"]
    assert [each.value for each in advice.evidence] == values
    assert advice.evidence[5].unit == "of 4"


def test_attention_of_other_queries_is_named_apart(ask, make_measured, make_facts):
    cross = attention(kind="cross", where=None, filler=3, padding_idx=False)
    both = ask("DP320", make_measured(), [make_facts(padded_attention=[attention(), cross])])
    assert both[1].title == "Padding mask missing: cross-attention gives 44 % of its weight to padding"
    assert "memory_key_padding_mask" in both[1].remedy
    assert both[1].evidence[3].value == "3"
    assert len({advice.fingerprint for advice in both}) == 2


def test_a_single_pass_is_not_enough(ask, make_measured, make_facts):
    assert ask("DP320", make_measured(), [make_facts(padded_attention=[attention(passes=1)])]) == []
    assert ask("DP320", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_show_it(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP320", make_measured(), [])
