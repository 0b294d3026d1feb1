"""Arithmetic of narrow integers that wraps: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.wrapped_integers import WrappedIntegerFacts


def wrapped(count=310, operator="sub", dtype="uint8", function="changes"):
    return WrappedIntegerFacts("train.py:31", function, operator, dtype, 1000, count)


@pytest.fixture
def advice(ask, make_measured, make_facts):
    return lambda *facts: ask("DP413", make_measured(), [make_facts(), make_facts(wrapped_integers=[*facts])])


def test_a_difference_of_images(advice):
    (found,) = advice(wrapped())
    assert found.title == (
        "`changes` (train.py:31) subtracts uint8 tensors: 31 % of the results are outside 0 to 255 and wrap around"
    )
    assert found.remedy == "Convert the tensors before the operator, for example with .float() or .to(torch.int32)."
    assert (found.kind, found.impact, found.fingerprint) == ("risk", "high", "DP413:changes")


def test_sums_of_samples_outside_of_functions(advice):
    (found,) = advice(wrapped(20, "add", "int16", function=""))
    assert found.title == (
        "train.py:31 adds int16 tensors: 2.0 % of the results are outside -32,768 to 32,767 and wrap around"
    )
    assert found.fingerprint == "DP413:train.py"


def test_a_conversion(advice):
    (found,) = advice(wrapped(400, "convert"))
    assert found.title == (
        "`changes` (train.py:31) converts to uint8: 40 % of the results are outside 0 to 255 and wrap around"
    )
    assert found.remedy == "Clamp the values first, or choose a dtype that holds all of them."


@pytest.mark.parametrize("facts", [wrapped(0), wrapped(-1), wrapped(operator=""), wrapped(dtype="x"), wrapped(10**9)])
def test_what_cannot_be(advice, facts):
    assert advice(facts) == []


def test_a_few_values_are_left_alone(advice):
    facts = wrapped(1)
    facts.values = 2000
    assert advice(facts) == []


def test_without_facts_the_rule_is_skipped(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP413", make_measured(), [])
