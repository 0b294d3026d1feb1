"""Files that several ranks save: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.saved_files import SavedFileFacts


def saved(path="/runs/last.pt", began=0, ended=10, times=2):
    return SavedFileFacts(path, "train.py:40", times, began, ended)


def test_ranks_that_save_it_at_the_same_time(ask, make_measured, make_facts):
    ranks = [
        make_facts(rank=0, host="a", saved_files=[saved()]),
        make_facts(rank=1, host="a", saved_files=[saved(began=9)]),
    ]
    (advice,) = ask("DP704", make_measured(), ranks)
    assert advice.title == "Ranks 0, 1 save the same file (train.py:40), at the same time: it can be corrupt"
    assert (advice.kind, advice.impact, advice.confidence, advice.threatens_results) == ("risk", "high", "high", True)
    assert [found.value for found in advice.evidence] == ["/runs/last.pt", 2]


def test_ranks_that_save_it_one_after_the_other(ask, make_measured, make_facts):
    later = saved(began=10, ended=20, times=1)
    more = [saved("/runs/best.pt"), saved()]
    ranks = [
        make_facts(rank=3, host="a", saved_files=[*more]),
        make_facts(rank=1, host="a", saved_files=[later, more[0]]),
    ]
    advice = ask("DP704", make_measured(), ranks)
    assert len(advice) == 1
    assert advice[0].evidence[-1].value == 1  # more such files
    (alone,) = ask("DP704", make_measured(), [make_facts(host="a", saved_files=[saved()]), ranks[1]])
    assert (alone.title, alone.impact) == (
        "Ranks 0, 1 save the same file (train.py:40), overwriting each other",
        "medium",
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", [saved()]), ("a", [])),
        (("a", [saved("/runs/0.pt")]), ("a", [saved("/runs/1.pt")])),
        (("a", [saved()]), ("b", [saved()])),  # each on a disk of its own, perhaps
    ],
)
def test_quiet(ask, make_measured, make_facts, first, second):
    ranks = [make_facts(rank=at, host=host, saved_files=files) for at, (host, files) in enumerate((first, second))]
    assert ask("DP704", make_measured(), ranks) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP704", make_measured(), [])


def test_a_file_that_ranks_will_save(ask, make_measured, make_facts):
    ahead = SavedFileFacts("/runs/last.pt", "train.py:40")
    ranks = [make_facts(rank=rank, host="a", saved_files=[ahead]) for rank in (0, 1)]
    (advice,) = ask("DP704", make_measured(), ranks)
    assert advice.title == (
        "Ranks 0, 1 will save the same file (train.py:40), possibly at the same time: it can be corrupt"
    )
    assert (advice.impact, advice.confidence) == ("high", "medium")
    assert [found.value for found in advice.evidence] == ["/runs/last.pt", "train.py:40"]
