"""Policies whose ratio stays 1: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.policy_ratios import PolicyRatioFacts
from dptune.runfile.repeated_forward import RepeatedForwardFacts
from dptune.runfile.same_results import SameResultFacts

MS = 1_000_000


def ratio(**changed):
    known = {"where": "train.py:20", "passes": 8, "ones": 8, "updates": 7, "samples": 64, "seen_again": 1.0}
    return PolicyRatioFacts(**{**known, "passes_seen": 8, **changed})


def test_samples_of_earlier_passes(ask, make_measured, make_facts):
    (advice,) = ask("DP314", make_measured(), [make_facts(rank=rank, policy_ratios=[ratio()]) for rank in (0, 1)])
    assert advice.title == (
        "The ratio of the new to the old policy (train.py:20) is exactly 1 in all passes, also for samples of earlier "
        "passes: clipping has no effect"
    )
    assert advice.remedy.startswith("Keep the log-probability from when the action is drawn")
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert [each.value for each in advice.evidence] == [8, 7, 64, 1.0, "train.py:20"]


def test_a_single_update_for_each_batch_may_be_meant(ask, make_measured, make_facts):
    (advice,) = ask("DP314", make_measured(), [make_facts(policy_ratios=[ratio(seen_again=0.3, where=None)])])
    assert advice.title == "The ratio of the new to the old policy is exactly 1 in all passes: clipping has no effect"
    assert "With a single update for each collected batch" in advice.why
    assert advice.remedy.startswith("If updates share samples: keep the log-probability")
    assert (advice.impact, advice.confidence) == ("low", "medium")


@pytest.mark.parametrize("changed", [{"ones": 7}, {"passes": 2, "ones": 2}, {"updates": 1}, {"passes": 0, "ones": 0}])
def test_quiet(ask, make_measured, make_facts, changed):
    assert ask("DP314", make_measured(), [make_facts(policy_ratios=[ratio(**changed)])]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP314", make_measured(), [])


@pytest.mark.parametrize(("ones", "named"), [(8, []), (1, ["DP625"])])
def test_a_second_evaluation_is_not_called_superfluous(ask, make_measured, make_facts, ones, named):
    again = SameResultFacts(
        "Policy.forward (train.py:9)",
        ["linear"],
        within_step=True,
        results=4,
        calls=8,
        **{"step_ns": [10 * MS] * 2, "again_ns": [2 * MS] * 2, "forward_ns": [5 * MS] * 2},
    )
    facts = make_facts(same_results=[again], policy_ratios=[ratio(ones=ones)])
    assert [each.rule for each in ask("DP625", make_measured(device="cpu", world=1), [facts])] == named


@pytest.mark.parametrize(("ones", "named"), [(8, []), (1, ["DP612"])])
def test_nor_is_the_whole_pass(ask, make_measured, make_facts, ones, named):
    times = {"step_ns": [10 * MS] * 2, "again_ns": [2 * MS] * 2, "forward_ns": [5 * MS] * 2}
    again = RepeatedForwardFacts("Policy", calls=2, inputs=1, without_graph=True, **times)
    facts = make_facts(repeated_forward=[again], policy_ratios=[ratio(ones=ones)])
    assert [each.rule for each in ask("DP612", make_measured(device="cpu", world=1), [facts])] == named
