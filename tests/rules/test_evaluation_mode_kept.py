import pytest

from dptune.measured import Missing
from dptune.runfile.evaluation_mode import EvaluationModeFacts


def kept(**more):
    values = {"names": ["drop"], "steps": 20, "recorded_steps": 25, "trained_before": True, **more}
    return EvaluationModeFacts("Net", 2, 1, **{"eval_where": "validate (train.py:9)", **values})


def test_validation_that_does_not_switch_back(ask, make_measured, make_facts):
    (advice,) = ask("DP804", make_measured(), [make_facts(), make_facts(rank=1, evaluation_mode=[kept()])])
    assert advice.title == (
        "`Net` trains in evaluation mode in 20 of 25 recorded steps: 2 dropout layers are off and 1 BatchNorm "
        "layer uses fixed statistics. Call .train() after .eval() in validate (train.py:9)"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)


def test_a_model_that_never_was_in_training_mode(ask, make_measured, make_facts):
    facts = make_facts(evaluation_mode=[kept(steps=25, trained_before=False, eval_where=None)])
    facts.evaluation_mode[0].norms = 0
    (advice,) = ask("DP804", make_measured(), [facts])
    assert advice.title == (
        "`Net` trains in evaluation mode in all recorded steps: 2 dropout layers are off. Call .train() before training"
    )
    assert (advice.impact, advice.confidence) == ("medium", "medium")


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP804", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP804", make_measured(), [])


def test_validation_that_the_recording_did_not_reach(ask, make_measured, make_facts):
    ahead = kept(steps=0, eval_where=None)
    ahead.keeps_where = "validate (train.py:9)"
    (advice,) = ask("DP804", make_measured(), [make_facts(evaluation_mode=[ahead])])
    assert advice.title == (
        "`Net` stays in evaluation mode after .eval() in validate (train.py:9): the training loop never calls "
        ".train(), so 2 dropout layers are off and 1 BatchNorm layer uses fixed statistics"
    )
    assert (advice.impact, advice.confidence) == ("high", "medium")
