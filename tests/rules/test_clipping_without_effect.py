"""Clipped gradients that no step uses: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.clipping import ClippingFacts

UNUSED = ClippingFacts("train.py:9", "AdamW", calls=5, steps=4, changed=4, step_where="train.py:8")


def test_a_line_whose_gradients_no_step_uses(ask, make_measured, make_facts):
    (advice,) = ask("DP307", make_measured(), [make_facts(clipping=[UNUSED]), make_facts(rank=1, clipping=[UNUSED])])
    assert advice.title == (
        "Gradients clipped at train.py:9 are never used: a backward pass changes them before each AdamW step"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.threatens_results) == ("risk", "high", "high", True)
    assert [found.value for found in advice.evidence] == [4, 5, "train.py:8"]
    assert advice.remedy == "Move the call at train.py:9 between the backward pass and the optimizer step."


def test_shards_that_each_rank_clips_for_itself(ask, make_measured, make_facts):
    shards = ClippingFacts("train.py:9", "AdamW", calls=4, steps=4, local=4)
    (advice,) = ask("DP307", make_measured(), [make_facts(clipping=[shards])])
    assert advice.title.startswith("train.py:9 clips the shards of FullyShardedDataParallel by the norm of one rank")
    assert "`clip_grad_norm_` of the wrapped model" in advice.remedy


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [ClippingFacts("train.py:9", "AdamW", calls=4, steps=4)],
        [ClippingFacts("train.py:9", "AdamW", calls=4, steps=4, changed=3)],
        [ClippingFacts("train.py:9", "AdamW", calls=3, steps=2, changed=2)],
        [UNUSED, ClippingFacts("train.py:12", "AdamW", calls=4, steps=4)],  # another line clips what steps use
        [ClippingFacts("train.py:9", "AdamW", calls=4, steps=4, local=3)],
    ],
)
def test_quiet(ask, make_measured, make_facts, lines):
    assert ask("DP307", make_measured(), [make_facts(clipping=lines)]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP307", make_measured(), [])
