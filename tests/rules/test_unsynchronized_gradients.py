"""DP107: an optimizer steps on gradients that were not averaged over the ranks."""

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import CallFacts, DdpFacts
from dptune.runfile.window import Window

DDP = DdpFacts("Net", "train.py:31", gradient_bytes=4_000_000)


def window(updates, sums=(1.5, -2.0), name="untraced"):
    durations = [10_000_000] * len(updates)
    return Window(name, 3, durations, unsynced_updates=updates, parameter_sums=list(sums), complete=True)


def ranks(make_facts, updates, sums=((1.5, -2.0), (1.5, -2.1)), **more):
    own = {"ddp": [DDP], "unsynced_where": "train.py:25", "calls_steps": 4, **more}
    return [make_facts(rank=rank, windows=[window(updates, sums[rank])], **own) for rank in (0, 1)]


def test_every_step(ask, make_measured, make_facts):
    (advice,) = ask("DP107", make_measured(), ranks(make_facts, [True] * 4))
    assert advice.title == (
        "Replicas drift apart: in every recorded step the optimizer uses gradients that were not averaged over the "
        "ranks (train.py:25)"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert ("backward pass before the step", "train.py:25") in [(one.label, one.value) for one in advice.evidence]


def test_some_steps(ask, make_measured, make_facts):
    (advice,) = ask("DP107", make_measured(), ranks(make_facts, [True, True, True, False]))
    assert "in 3 of 4 recorded steps" in advice.title
    assert advice.evidence[1].value == 0.75


def test_less_sure_where_weights_were_not_compared(ask, make_measured, make_facts):
    (advice,) = ask("DP107", make_measured(), ranks(make_facts, [True] * 4, ((), ())))
    assert advice.confidence == "medium"


@pytest.mark.parametrize(
    "more",
    [
        {"updates": [False] * 4},
        {"sums": ((1.5, -2.0), (1.5, -2.0 - 1e-12))},  # something that is not seen keeps the replicas equal
        {"averages_models": True},
        {"engine": "deepspeed"},
        {"ddp": []},
        {"calls": [CallFacts("all_reduce", "train.py:40", calls=1, sent_bytes=4_000_000)]},  # each fourth step
    ],
)
def test_quiet(ask, make_measured, make_facts, more):
    assert ask("DP107", make_measured(), ranks(make_facts, **{"updates": [True] * 4, **more})) == []


def test_metrics_are_no_gradients(ask, make_measured, make_facts):
    calls = [CallFacts("all_reduce", "train.py:40", calls=4, sent_bytes=4 * 64)]
    assert ask("DP107", make_measured(), ranks(make_facts, [True] * 4, calls=calls))


def older(make_facts, backwards, held):
    window = Window("untraced", 3, [9] * 2, backwards=[backwards] * 2, unsynced_backwards=[held] * 2)
    return [make_facts(rank=rank, ddp=[DDP], windows=[window]) for rank in (0, 1)]


def test_an_older_recording_in_which_all_or_no_passes_were_synchronized(ask, make_measured, make_facts):
    assert ask("DP107", make_measured(), older(make_facts, 4, 0)) == []
    assert len(ask("DP107", make_measured(), older(make_facts, 4, 4))) == 1


def test_an_older_recording_in_which_some_were_is_skipped(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="recorded by an older dptune"):
        ask("DP107", make_measured(), older(make_facts, 4, 3))


def test_without_a_backward_pass_nothing_is_known(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no backward call was counted"):
        ask("DP107", make_measured(), ranks(make_facts, []))
