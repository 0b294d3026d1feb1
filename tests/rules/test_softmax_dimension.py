"""Softmax over another dimension than that of its use: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.softmax_dimensions import SoftmaxDimensionFacts


def softmax(**changed):
    known = {"where": "train.py:20", "use_where": "train.py:31", "sizes": [16, 5], "passes": 3, "passes_seen": 4}
    return SoftmaxDimensionFacts(**{**known, "function": "log_softmax", "expected": 1, "count": 1, **changed})


def test_a_loss_takes_classes_from_another_dimension(ask, make_measured, make_facts):
    (advice,) = ask("DP319", make_measured(), [make_facts(rank=at, softmax_dimensions=[softmax()]) for at in (0, 1)])
    assert advice.title == (
        "Wrong dimension: log_softmax (train.py:20) normalizes over dimension 0, but the loss takes classes from "
        "dimension 1"
    )
    assert advice.remedy == "Pass dim=1 to log_softmax."
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert [each.value for each in advice.evidence] == [3, 1, "16 x 5", "train.py:20", "train.py:31"]
    assert advice.evidence[0].unit == "of 4"


def test_a_cross_entropy_takes_logits(ask, make_measured, make_facts):
    found = softmax(function="softmax", used_as="cross_entropy")
    (advice,) = ask("DP319", make_measured(), [make_facts(softmax_dimensions=[found])])
    assert advice.remedy == "Return the logits: cross_entropy applies softmax itself, over dimension 1."


def test_weights_that_a_product_sums(ask, make_measured, make_facts):
    found = softmax(function="softmax", used_as="weights", dim=1, expected=3, sizes=[8, 4, 16, 16], where=None)
    (advice,) = ask("DP319", make_measured(), [make_facts(softmax_dimensions=[found])])
    assert advice.title == (
        "Wrong dimension: softmax normalizes over dimension 1, but the product with the values sums over dimension 3"
    )
    assert "sum to 1 over dimension 1" in advice.why
    assert advice.remedy == "Pass dim=3 to softmax."


def test_each_is_named(ask, make_measured, make_facts):
    both = [softmax(), softmax(function="softmax", used_as="weights", dim=0, expected=2)]
    found = ask("DP319", make_measured(), [make_facts(softmax_dimensions=both)])
    assert len({advice.fingerprint for advice in found}) == 2


def test_a_single_pass_is_not_enough(ask, make_measured, make_facts):
    assert ask("DP319", make_measured(), [make_facts(softmax_dimensions=[softmax(passes=1)])]) == []
    assert ask("DP319", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP319", make_measured(), [])
