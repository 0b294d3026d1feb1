"""Padding among the targets of a loss: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.counted_padding import CountedPaddingFacts
from dptune.runfile.loader import LoaderFacts, PreparingFacts

MASKED = CountedPaddingFacts("attention_mask", "GPT2LMHeadModel", targets=400, padding=100, passes=4)


@pytest.mark.parametrize(
    ("found", "said", "remedy"),
    [
        (
            MASKED,
            "at positions that the attention mask of GPT2LMHeadModel masks",
            "Set `labels[attention_mask == 0] = -100` where batches are made.",
        ),
        (
            CountedPaddingFacts("pad_token_id", "T5ForConditionalGeneration", 400, 100, 4, 3),
            "3, the pad_token_id of T5ForConditionalGeneration",
            "Set `labels[labels == 3] = -100` where batches are made.",
        ),
        (
            CountedPaddingFacts("padding_idx", "50 classes", 400, 100, 4, 0),
            "0, the padding_idx of the embedding",
            "Pass `ignore_index=0` to the cross entropy.",
        ),
        (
            CountedPaddingFacts("place", "9 classes", 400, 100, 4, 0),
            "class 0, which only padding has",
            "Pass `ignore_index=0` to the cross entropy.",
        ),
    ],
)
def test_what_shows_the_padding(ask, make_measured, make_facts, found, said, remedy):
    loader = LoaderFacts("train.py:8", batches_drawn=9, preparing=PreparingFacts(9, collated_by="collate (data.py:4)"))
    small = CountedPaddingFacts("attention_mask", "Small", targets=400, padding=2, passes=4)
    (advice,) = ask("DP512", make_measured(), [make_facts(counted_padding=[small, found], loaders=[loader])])
    assert advice.title == f"The loss counts padding: 25 % of the targets are {said}"
    assert advice.remedy == remedy
    assert [item.value for item in advice.evidence] == [100, 4, "collate (data.py:4)"]
    assert (advice.kind, advice.impact, advice.confidence, advice.threatens_results) == ("risk", "high", "high", True)


@pytest.mark.parametrize(
    "found",
    [
        [],
        [CountedPaddingFacts("attention_mask", "GPT2LMHeadModel", targets=400, padding=0, passes=4)],
        [CountedPaddingFacts("attention_mask", "GPT2LMHeadModel", targets=400, padding=3, passes=4)],
        [CountedPaddingFacts("attention_mask", "GPT2LMHeadModel")],
    ],
)
def test_quiet(ask, make_measured, make_facts, found):
    assert ask("DP512", make_measured(), [make_facts(counted_padding=found)]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP512", make_measured(), [])
