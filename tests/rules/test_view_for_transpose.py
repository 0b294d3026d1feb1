"""Views where a transpose is meant: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.misplaced_views import MisplacedViewFacts


def viewed(steps=3, seen=3, function="Net.forward", certain=True, made=(16, 7, 96), instead=".transpose(1, 2)"):
    return MisplacedViewFacts(
        "train.py:31", function, "view", [16, 96, 7], list(made), instead, steps, seen, certain=certain
    )


@pytest.fixture
def advice(ask, make_measured, make_facts):
    return lambda *facts: ask("DP316", make_measured(), [make_facts(), make_facts(misplaced_views=[*facts])])


def test_the_line_its_shapes_and_what_moves_the_values(advice):
    (found,) = advice(viewed())
    assert found.title == (
        "`Net.forward` (train.py:31) changes the shape (16, 96, 7) to (16, 7, 96) by `view`: dimensions change places, "
        "the values do not"
    )
    assert found.remedy == "Move the dimensions: `x.transpose(1, 2)` in place of the `view`."
    assert (found.kind, found.impact, found.confidence) == ("risk", "high", "high")
    assert [each.value for each in found.evidence] == [3, "(16, 96, 7)", "(16, 7, 96)", "train.py:31"]
    assert found.fingerprint == "DP316:Net.forward"


def test_sizes_that_may_match_by_chance(advice):
    (found,) = advice(viewed(certain=False))
    assert (found.impact, found.confidence) == ("high", "medium")


def test_lines_outside_of_functions(advice):
    (found,) = advice(viewed(function=""))
    assert found.title.startswith("train.py:31 changes the shape")
    assert found.fingerprint == "DP316:train.py"


@pytest.mark.parametrize(
    "facts", [viewed(steps=1), viewed(seen=2), viewed(made=(16, 7, 95)), viewed(made=(16, 96, 7)), viewed(instead="")]
)
def test_too_few_steps_and_what_cannot_be(advice, facts):
    assert advice(facts) == []


def test_without_facts_the_rule_is_skipped(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP316", make_measured(), [])
