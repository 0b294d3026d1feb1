"""Language models without a causal mask: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.causal_masks import CausalMaskFacts


def masks(**changed):
    known = {"where": "train.py:20", "passes": 3, "layers": 2, "positions": 64, "targets": 500, "passes_seen": 3}
    return CausalMaskFacts(**{**known, "seen_share": 1.0, "later_share": 0.48, **changed})


def test_it_names_the_line_of_the_attention(ask, make_measured, make_facts):
    (advice,) = ask("DP317", make_measured(), [make_facts(rank=rank, causal_masks=[masks()]) for rank in (0, 1)])
    assert advice.title == (
        "Causal mask missing: self-attention (train.py:20) attends to the tokens that the model is trained to predict"
    )
    assert "is_causal=True" in advice.remedy
    assert "generate_square_subsequent_mask" in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert [each.value for each in advice.evidence] == [0.48, 500, 1.0, 2, 64, 3, "train.py:20"]


def test_without_a_line(ask, make_measured, make_facts):
    (advice,) = ask("DP317", make_measured(), [make_facts(causal_masks=[masks(where=None)])])
    assert advice.title.startswith("Causal mask missing: self-attention attends to")
    assert advice.evidence[-1].value == 3


def test_a_single_pass_is_not_enough(ask, make_measured, make_facts):
    assert ask("DP317", make_measured(), [make_facts(causal_masks=[masks(passes=1)])]) == []
    assert ask("DP317", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP317", make_measured(), [])
