"""Parts of a model that no gradient reaches: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.unreached import UnreachedFacts

CUT = UnreachedFacts("SGD", ["encoder.0", "encoder.2"], 250, 1000, steps=3, runs=3, where="train.py:7")


def test_the_modules_and_their_share(ask, make_measured, make_facts):
    (advice,) = ask("DP308", make_measured(), [make_facts(unreached=[CUT])])
    assert advice.title == (
        "No gradient reaches `encoder.0`, `encoder.2`: 25 % of the parameters of SGD (train.py:7) are not updated"
    )
    assert (advice.kind, advice.confidence, advice.threatens_results) == ("risk", "high", True)
    assert [(found.value, found.unit) for found in advice.evidence][:2] == [(250, "of 1,000"), (3, "of 3")]
    assert advice.evidence[2].value == "train.py:7"


@pytest.mark.parametrize(
    "found",
    [
        UnreachedFacts("SGD", ["pooler"], 99, 1000, steps=3, runs=3),  # less than a tenth
        UnreachedFacts("SGD", ["encoder"], 250, 1000, steps=1, runs=1),
        UnreachedFacts("SGD"),
    ],
)
def test_quiet(ask, make_measured, make_facts, found):
    assert ask("DP308", make_measured(), [make_facts(unreached=[found])]) == []


def test_the_threshold_can_be_set(ask, make_measured, make_facts):
    assert ask("DP308", make_measured(), [make_facts(unreached=[CUT])], {"worth_share": 0.3}) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP308", make_measured(), [])
