"""Steps at a learning rate of zero: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.schedules import SchedulerFacts, ZeroRateFacts

ALL = ZeroRateFacts("AdamW", "train.py:7", steps=28, zero=28, last_zero=True)


def test_a_schedule_that_never_steps(ask, make_measured, make_facts):
    schedule = SchedulerFacts("LambdaLR", "train.py:8", advanced=[0, 0], optimizer_steps=[4, 28])
    (advice,) = ask("DP309", make_measured(), [make_facts(zero_rates=[ALL], schedulers=[schedule])])
    assert advice.title == (
        "AdamW (train.py:7) takes all 28 recorded steps at a learning rate of 0, which leaves the weights unchanged"
    )
    assert advice.why == "The schedule (LambdaLR) starts at 0, and scheduler.step() was not called."
    assert [found.value for found in advice.evidence] == [28, "train.py:8"]


def test_a_schedule_that_has_ended(ask, make_measured, make_facts):
    schedule = SchedulerFacts("LinearLR", "train.py:8", advanced=[4, 28], optimizer_steps=[4, 28])
    found = ZeroRateFacts("SGD", None, steps=28, zero=20, last_zero=True)
    (advice,) = ask("DP309", make_measured(), [make_facts(zero_rates=[found], schedulers=[schedule])])
    assert advice.title.startswith("SGD takes 20 of 28 recorded steps at a learning rate of 0")
    assert advice.why == "The schedule (LinearLR) gives 0 at this step."


@pytest.mark.parametrize(
    "found",
    [
        ZeroRateFacts("SGD", steps=28, zero=1),  # the first step of a warm-up
        ZeroRateFacts("SGD", steps=9, zero=9, last_zero=True),
        ZeroRateFacts("SGD", steps=28, zero=13, last_zero=True),
        ZeroRateFacts("SGD", steps=28, zero=20, last_zero=False),  # a warm-up that has begun
    ],
)
def test_quiet(ask, make_measured, make_facts, found):
    assert ask("DP309", make_measured(), [make_facts(zero_rates=[found])]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP309", make_measured(), [])
