"""Labels that are shifted twice: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.loader import LoaderFacts, PreparingFacts
from dptune.runfile.shifted_labels import ShiftedLabelFacts

TWICE = ShiftedLabelFacts(targets=400, after_next=396, following=0.002)


def test_the_share_of_targets_and_where_samples_come_from(ask, make_measured, make_facts):
    preparing = PreparingFacts(9, read_by="Recipes.__getitem__ (data.py:26)", collated_by="collate (data.py:40)")
    validation = LoaderFacts("train.py:9", batches_drawn=1)
    loaders = [validation, LoaderFacts("train.py:8", batches_drawn=9, preparing=preparing)]
    ranks = [make_facts(rank=rank, shifted_labels=[TWICE, TWICE], loaders=loaders) for rank in (0, 1)]
    (advice,) = ask("DP509", make_measured(), ranks)
    assert advice.title == (
        "Labels are shifted twice: 99 % of the targets are the token after the next, and no loss trains the next token"
        "; samples come from `Recipes.__getitem__` (data.py:26)"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.threatens_results) == ("risk", "high", "high", True)
    assert [found.value for found in advice.evidence] == [pytest.approx(0.99), 0.002, 2, "collate (data.py:40)"]
    assert "labels=input_ids" in advice.remedy
    loaders[1].shifts_at = ["data.py:29"]
    (advice,) = ask("DP509", make_measured(), ranks)
    assert advice.title.endswith("no loss trains the next token; samples are shifted at data.py:29")


def test_the_lines_of_the_loss_that_shift_once_more(ask, make_measured, make_facts):
    found = ShiftedLabelFacts(400, 396, 0.002, loss_shifts_at=["model.py:65"])
    (advice,) = ask("DP509", make_measured(), [make_facts(shifted_labels=[found])])
    assert {one.label: one.value for one in advice.evidence}["the loss shifts labels at"] == "model.py:65"
    (advice,) = ask("DP509", make_measured(), [make_facts(shifted_labels=[TWICE])])
    assert "the loss shifts labels at" not in {one.label for one in advice.evidence}


@pytest.mark.parametrize(
    "passes",
    [
        [],
        [ShiftedLabelFacts(400, 1, 1.0)],  # shifted once
        [ShiftedLabelFacts(400, 0, 0.0)],  # not shifted: a masked language model
        [ShiftedLabelFacts(400, 379, 0.0)],  # 94.75 %
        [ShiftedLabelFacts(400, 400, 0.51)],  # another loss trains the next token, or the text repeats one
        [ShiftedLabelFacts(31, 31, 0.0)],
        [TWICE, ShiftedLabelFacts(400, 1, 1.0)],
    ],
)
def test_quiet(ask, make_measured, make_facts, passes):
    assert ask("DP509", make_measured(), [make_facts(shifted_labels=passes)]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP509", make_measured(), [])
