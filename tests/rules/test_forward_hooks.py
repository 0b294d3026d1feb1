"""Forward hooks whose results nothing reads: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.hook_calls import HookCallFacts
from dptune.runfile.window import SampledFacts, Window

MS = 1_000_000
LOOP = ["<module> (train.py:90)", "main (train.py:80)"]


def hook(**more):
    return HookCallFacts(
        "Recorder.record", "train.py:20", **{"modules": 12, "operators": ["clone"], "calls": 12, "steps": 3, **more}
    )


def sampled(hook_ms):
    """Ten steps of 100 ms, of which a hook takes a part in forward passes."""
    steps = list(range(10))
    rest = SampledFacts(
        LOOP, "backward", looks=100 - hook_ms, steps=steps, spent_ns=[(100 - hook_ms) * MS] * 10, firsts=[0, 70]
    )
    inside = SampledFacts(
        [*LOOP, "Recorder.record (train.py:21)"],
        "forward",
        looks=hook_ms,
        steps=steps,
        spent_ns=[hook_ms * MS] * 10,
        firsts=[0, 70, 20],
    )
    return Window("untraced", 5, [100 * MS] * 10, sampled=[rest, *([inside] if hook_ms else [])])


@pytest.fixture
def advice(ask, make_measured, make_facts):
    def found(*hooks, hook_ms=20, times_hold=True, **measured):
        run = make_measured(**{"device": "cpu", "world": 1, **measured})
        facts = make_facts(hook_calls=[*hooks], windows=[sampled(hook_ms)])
        return ask("DP628", run, [facts], times_hold=times_hold)

    return found


def test_copies_that_nothing_reads(advice):
    (found,) = advice(hook())
    assert found.title == (
        "`Recorder.record` (train.py:21), a forward hook on 12 modules, takes 20 % of the step, but no operator reads "
        "its results"
    )
    assert (found.impact, found.confidence, found.numerics) == ("high", "medium", "same")
    assert found.remedy == "Remove the hook, or return early from `record` in all but every N-th step."
    assert found.saves.basis == "sampled"
    assert 0 < found.saves.low_share < 0.2 < found.saves.high_share


def test_arrays_save_more_than_the_time_in_the_hook(advice):
    (found,), (other,) = advice(hook(arrays=True)), advice(hook())
    assert found.saves.low_share == other.saves.low_share
    assert found.saves.high_share == pytest.approx(2.3 / 1.3 * other.saves.high_share)


def test_a_hook_of_one_module(advice):
    (found,) = advice(hook(modules=1))
    assert ", a forward hook, takes 20 % " in found.title


def test_a_gpu_may_hide_the_time(advice):
    (found,) = advice(hook(), device="cuda")
    assert (found.saves.basis, found.saves.low_share, found.confidence) == ("bound", 0, "low")


def test_no_saving_is_predicted_where_times_do_not_hold(advice):
    (found,) = advice(hook(), times_hold=False)
    assert (found.saves.basis, found.confidence) == ("bound", "low")


def test_a_hook_that_takes_little(advice):
    assert advice(hook(), hook_ms=2) == []
    assert advice(hook(), hook_ms=0) == []
    assert advice() == []


def test_without_stack_samples_the_rule_is_skipped(ask, make_measured, make_facts):
    with pytest.raises(Missing):
        ask("DP628", make_measured(), [make_facts(hook_calls=[hook()])])
    with pytest.raises(Missing):
        ask("DP628", make_measured(), [])
