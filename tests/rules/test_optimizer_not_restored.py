"""Optimizers that start without the state of a checkpoint: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.unrestored_states import UnrestoredStateFacts

FOUND = UnrestoredStateFacts("AdamW", "train.py:20", "train.py:15", "optim", "epoch", parameters=6)


def test_the_checkpoint_and_its_key_are_named(ask, make_measured, make_facts):
    (advice,) = ask("DP312", make_measured(), [make_facts(rank=rank, unrestored_states=[FOUND]) for rank in (0, 1)])
    assert advice.title == (
        "AdamW (train.py:20) starts without its state, which the checkpoint loaded at train.py:15 has under `optim`"
    )
    assert advice.why.startswith("The script continues at the checkpoint's `epoch` with its weights.")
    assert advice.remedy.startswith('Call optimizer.load_state_dict(checkpoint["optim"])')
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "medium", None)
    assert [one.value for one in advice.evidence] == [6, "train.py:15"]


def test_an_optimizer_that_is_created_anew_for_each_step(ask, make_measured, make_facts):
    found = UnrestoredStateFacts("Adam", "train.py:9", None, "", "", parameters=6, renewed=4)
    (advice,) = ask("DP312", make_measured(), [make_facts(unrestored_states=[found])])
    assert advice.title == "Adam is created again for each step (train.py:9): its state is lost"
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert [one.value for one in advice.evidence] == [4, "train.py:9", 6]


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP312", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP312", make_measured(), [])
