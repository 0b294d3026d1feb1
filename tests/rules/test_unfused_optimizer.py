import pytest

from dptune.measured import Missing
from dptune.runfile.facts import OptimizerFacts

ADAM = {"name": "AdamW", "where": "train.py:22", "parameter_tensors": 400, "parameters": 10_000}


def facts(make_facts, **more):
    return [make_facts(optimizers=[OptimizerFacts(**{**ADAM, **more})])]


def test_a_loop_over_many_tensors(ask, make_measured, make_facts, hand_made):
    run = make_measured(device="cpu", phases=hand_made.phases(0.3, 0.5, 0.2))
    (advice,) = ask("DP603", run, facts(make_facts))
    assert advice.title == "AdamW takes 20 % of a step, for it updates 400 tensors one by one: fuse it"
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == ("optimizer.fused", False, True, "train.py:22")
    assert advice.saves.high_share == pytest.approx(0.2)
    assert (advice.impact, advice.saves.basis) == ("medium", "bound")


def test_of_several_optimizers_it_is_not_told_which_takes_the_time(ask, make_measured, make_facts, hand_made):
    run = make_measured(device="cpu", phases=hand_made.phases(0.3, 0.5, 0.2))
    looping, other = OptimizerFacts(**ADAM), OptimizerFacts(**{**ADAM, "name": "Muon"})
    with pytest.raises(Missing, match="which of them takes the time"):
        ask("DP603", run, [make_facts(optimizers=[looping, other])])
    assert len(ask("DP603", run, [make_facts(optimizers=[looping, looping])])) == 1


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("cpu", {"fused": True}),
        ("cpu", {"foreach": True}),
        ("cpu", {"name": "RMSprop"}),
        ("cuda", {}),  # foreach is what torch takes there
    ],
)
def test_quiet_where_nothing_loops(ask, make_measured, make_facts, hand_made, device, told):
    run = make_measured(device=device, phases=hand_made.phases(0.3, 0.5, 0.2))
    assert ask("DP603", run, facts(make_facts, **told)) == []
    assert len(ask("DP603", run, facts(make_facts, foreach=False))) == 1


def test_quiet_where_it_takes_little(ask, make_measured, make_facts, hand_made):
    run = make_measured(device="cpu", phases=hand_made.phases(0.4, 0.51, 0.09))
    assert ask("DP603", run, facts(make_facts)) == []
