"""Models that are evaluated in training mode: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.training_mode import ActiveDropoutFacts, TrainingModeFacts


@pytest.mark.parametrize(
    ("layers", "said", "confidence"),
    [
        ((1, 0), "1 dropout layer is active", "medium"),
        ((2, 1), "2 dropout layers are active and 1 BatchNorm layer uses and updates statistics of", "high"),
        ((0, 3), "3 BatchNorm layers use and update statistics of", "high"),
    ],
)
def test_what_training_mode_does(ask, make_measured, make_facts, layers, said, confidence):
    mode = TrainingModeFacts("Net", *layers, calls=3, training=3, where="train.py:12")
    (advice,) = ask("DP806", make_measured(), [make_facts(), make_facts(rank=1, training_mode=[mode])])
    assert advice.title.startswith(f"`Net` is evaluated in training mode (train.py:12): {said}")
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", confidence)
    assert [(found.value, found.unit) for found in advice.evidence] == [(3, "of 3")]


@pytest.mark.parametrize("mode", [TrainingModeFacts("Net", 1, 0, 1, 1), TrainingModeFacts("Net", 1, 0, 5, 4)])
def test_quiet(ask, make_measured, make_facts, mode):
    assert ask("DP806", make_measured(), [make_facts(training_mode=[mode])]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP806", make_measured(), [])


def test_an_evaluation_that_the_recording_did_not_reach(ask, make_measured, make_facts):
    mode = TrainingModeFacts("Net", 2, 0, ahead="train.py:12")
    (advice,) = ask("DP806", make_measured(), [make_facts(training_mode=[mode])])
    assert advice.title == (
        "`Net` will be evaluated in training mode at train.py:12: the script never calls .eval(), so 2 dropout layers "
        "are active"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "medium")
    assert [found.value for found in advice.evidence] == ["train.py:12"]
    assert ask("DP806", make_measured(), [make_facts(training_mode=[TrainingModeFacts("Net", 2, 0, calls=1)])]) == []


def test_dropout_that_stays_active(ask, make_measured, make_facts):
    lines = [ActiveDropoutFacts(f"net.py:{line}", "dropout", "Net", 0.3) for line in (11, 12, 13)]
    (advice,) = ask("DP806", make_measured(), [make_facts(active_dropouts=lines)])
    assert advice.title == (
        "Dropout stays active in evaluation mode: dropout at net.py:11, net.py:12 and 1 more does not use self.training"
    )
    assert (advice.impact, advice.confidence) == ("high", "medium")
    assert advice.remedy == "Pass `training=self.training`."
    assert "drops 30 % of the values" in advice.why


def test_attention_that_drops_in_evaluation(ask, make_measured, make_facts):
    line = ActiveDropoutFacts("net.py:11", "scaled_dot_product_attention", "Net", 0.1, evaluated=True)
    (advice,) = ask("DP806", make_measured(), [make_facts(active_dropouts=[line])])
    assert advice.confidence == "high"
    assert advice.remedy == "Pass `dropout_p=p if self.training else 0.0`."
