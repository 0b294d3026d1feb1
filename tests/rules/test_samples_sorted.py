"""Data sets that are sorted by label: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.sorted_labels import SortedLabelFacts


def labels(**changed):
    known = {"where": "train.py:20", "dataset": "Shells", "labels": "kinds", "sampler": "SequentialSampler"}
    counts = {"samples": 4000, "classes": 8, "changes": 7, "expected_changes": 3499.1, "batch_size": 32, "passes": 5}
    return SortedLabelFacts(**{**known, **counts, **changed})


def test_it_names_the_data_set_its_labels_and_the_loader(ask, make_measured, make_facts):
    (advice,) = ask("DP516", make_measured(), [make_facts(sorted_labels=labels())])
    assert advice.title == (
        "Batches contain one class at a time: `Shells` is sorted by `kinds`, and the loader at train.py:20 does not "
        "shuffle"
    )
    assert (advice.kind, advice.saves, str(advice.place)) == ("risk", None, "train.py:20")
    assert [each.value for each in advice.evidence] == [7, 3499, 8, 32, 5, "train.py:20"]
    assert advice.remedy == "Pass shuffle=True."


def test_a_sampler_of_ranks(ask, make_measured, make_facts):
    facts = [make_facts(rank=1, sorted_labels=labels(sampler="DistributedSampler", where=None))]
    (advice,) = ask("DP516", make_measured(), facts)
    assert advice.title.endswith("and the loader does not shuffle")
    assert "shuffle=False" in advice.remedy


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP516", make_measured(), [make_facts()]) == []
    with pytest.raises(Missing):
        ask("DP516", make_measured(), [])
