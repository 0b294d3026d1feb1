"""Data sets that change the samples they keep: facts are made up."""

from dataclasses import replace

import pytest

from dptune.measured import Missing
from dptune.runfile.changed_samples import ChangedSampleFacts
from dptune.runfile.loader import LoaderFacts, PreparingFacts

READER = "Beats.__getitem__ (data.py:32)"
BEATS = ChangedSampleFacts("Beats.beats", READER, rows=8, changed=7)


def test_what_reads_the_samples_and_what_holds_them(ask, make_measured, make_facts):
    ranks = [make_facts(rank=rank, changed_samples=[BEATS]) for rank in (0, 1)]
    (advice,) = ask("DP510", make_measured(), ranks)
    assert advice.title == (
        "`Beats.__getitem__` (data.py:32) changes the samples in `Beats.beats` in place: augmentation accumulates over "
        "epochs"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "medium")
    assert [(found.value, found.unit) for found in advice.evidence] == [(7, "of 8 in one batch"), ("Beats.beats", "")]
    assert ".clone()" in advice.remedy


@pytest.mark.parametrize(
    ("persistent", "read_by", "count"), [(True, READER, 1), (False, READER, 0), (True, "Others.__getitem__", 0)]
)
def test_copies_of_workers_end_with_them(ask, make_measured, make_facts, persistent, read_by, count):
    preparing = PreparingFacts(9, read_by=read_by)
    loader = LoaderFacts("train.py:8", num_workers=2, persistent_workers=persistent, preparing=preparing)
    facts = make_facts(changed_samples=[replace(BEATS, in_worker=True)], loaders=[loader])
    assert len(ask("DP510", make_measured(), [facts])) == count


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP510", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP510", make_measured(), [])
