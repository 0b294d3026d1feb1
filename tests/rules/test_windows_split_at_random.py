"""Overlapping windows that are split at random: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.split_windows import SplitWindowFacts


def split(beside=115, where="split (train.py:31)"):
    return SplitWindowFacts(where, "Windows", 480, 120, beside)


@pytest.fixture
def advice(ask, make_measured, make_facts):
    return lambda *facts: ask("DP515", make_measured(), [make_facts(), make_facts(split_windows=[*facts])])


def test_the_split_and_how_many_windows(advice):
    (found,) = advice(split())
    assert found.title == (
        "`split` (train.py:31) splits overlapping windows of `Windows` at random: 96 % of the held-out windows share "
        "values with training windows"
    )
    assert found.remedy == "Split the recordings or the time range first, then cut windows from each part."
    assert (found.kind, found.impact, found.fingerprint) == ("risk", "high", "DP515:Windows")


@pytest.mark.parametrize(("where", "words"), [("train.py:31", "train.py:31 splits"), (None, "The script splits")])
def test_outside_of_functions(advice, where, words):
    (found,) = advice(split(where=where))
    assert found.title.startswith(f"{words} overlapping windows of `Windows` at random: ")


@pytest.mark.parametrize("beside", [0, -1, 2, 59, 10**9])
def test_few_at_a_border_or_an_impossible_number(advice, beside):
    assert advice(split(beside)) == []


def test_without_facts_the_rule_is_skipped(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP515", make_measured(), [])
