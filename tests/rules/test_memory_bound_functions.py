"""Functions that spend much in memory-bound operators: figures are made up."""

import pytest

from dptune import testing
from dptune.measured import KernelFigures, KernelTime, MemoryBoundFunction, Missing, OperatorCost, UserCodeFigures
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES
from .test_uncovered_cost import other


def function(share=0.49, **changed):
    known = {
        "name": "si_sdr",
        "at": "choir.py:36",
        "calls": 144,
        "rank": 0,
        "cost_ns": 12_000_000,
        "backward_ns": 15_000_000,
        "share": share,
        "runs": 24,
        "calls_backward": False,
        "operators": [
            OperatorCost(name="aten::square", calls=72, size=[5, 4, 3600], share=0.17),
            OperatorCost(name="aten::mul", calls=72, size=[], share=0.1),
        ],
    }
    return MemoryBoundFunction(**{**known, **changed})


def ask(*found, advised=()):
    code = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[], memory_bound=list(found))
    return list(RULES["DP902"].check(RunView(measured_run(user_code=code), [], advised=advised)))


def test_the_function_its_operators_and_sizes():
    (advice,) = ask(function())
    assert advice.title == (
        "`si_sdr` (choir.py:36) spends 49 % of the step in memory-bound operators in 24 runs, with the backward "
        "pass: square 17 %, mul 10 %"
    )
    assert advice.remedy.startswith("Check whether its runs repeat results, ")
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("medium", "low", "bound")
    assert (advice.saves.low_share, advice.saves.high_share) == (0, 0.49)
    labels = [(evidence.label, evidence.value) for evidence in advice.evidence]
    assert ("square: 72 calls on 5 x 4 x 3600", 0.17) in labels
    assert ("mul: 72 calls", 0.1) in labels


@pytest.mark.parametrize(("share", "impacts"), [(0.19, []), (0.2, ["low"]), (0.29, ["low"]), (0.3, ["medium"])])
def test_from_a_fifth_of_the_step(share, impacts):
    assert [advice.impact for advice in ask(function(share))] == impacts


def test_the_runs_of_a_generator_are_not_stated():
    (advice,) = ask(function(name="<genexpr>"))
    assert "runs" not in advice.title


def test_what_another_rule_names_is_left_to_it():
    assert ask(function(), advised=[other(title="`si_sdr` (choir.py:36) takes long")]) == []
    assert len(ask(function(), advised=[other(title="`mix` (choir.py:90) takes long")])) == 1


def test_the_training_loop_is_left_out():
    assert ask(function(calls_backward=True)) == []


def test_the_two_that_take_most():
    named = ask(function(0.4), function(0.3, name="mix"), function(0.2, name="add"))
    assert [advice.fingerprint for advice in named] == ["DP902:si_sdr", "DP902:mix"]


@pytest.mark.parametrize(
    ("name", "share", "asks"), [("aten::mul", 0.2, True), ("aten::mul", 0.1, False), ("aten::mm", 0.9, False)]
)
def test_without_stacks_it_is_skipped_only_where_such_operators_take_time(name, share, asks):
    top = [KernelTime(name=name, kind="other", calls_per_step=1, total_ns=9, median_ns=9, step_share=share)]
    known = {"short_share": 0.0, "launch_bound_share": 0.0, "kinds_ns": {}}
    kernels = testing.figures(KernelFigures, counted="operators", per_step=1, median_ns=1, total_ns=9, top=top, **known)
    view = RunView(measured_run(kernels=kernels), [])
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP902"].check(view))
    else:
        assert list(RULES["DP902"].check(view)) == []
