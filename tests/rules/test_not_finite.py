"""Losses that are NaN or infinite, and steps that a scaler skips: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.window import Window

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("losses", "said", "confidence"),
    [
        ([1.0, 0.9, NAN, NAN], "all losses from backward pass 3 on are NaN", "high"),
        ([NAN, NAN, NAN], "all losses are NaN", "high"),
        ([1.0, INF, NAN], "all losses from backward pass 2 on are NaN or infinite", "high"),
        ([NAN, 1.0, INF, 1.0], "2 of 4 losses are NaN or infinite, the first in backward pass 1", "medium"),
        ([1.0, NAN, 1.0, NAN], "2 of 4 losses are NaN, the first in backward pass 2", "medium"),
    ],
)
def test_losses_that_are_not_finite(ask, make_measured, make_facts, losses, said, confidence):
    facts = make_facts(losses=losses, backward_where="train.py:9")
    (advice,) = ask("DP412", make_measured(), [facts])
    assert advice.title == f"The loss is not finite (train.py:9): {said}"
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", confidence)


def test_the_ranks_with_such_losses(ask, make_measured, make_facts):
    ranks = [make_facts(losses=[1.0, 1.0]), make_facts(rank=1, losses=[1.0, NAN])]
    (advice,) = ask("DP412", make_measured(), ranks)
    assert [(found.label, found.value) for found in advice.evidence] == [
        ("losses that are not finite", 1),
        ("loss of the pass before", 1.0),
        ("ranks with such losses", "1"),
    ]


@pytest.mark.parametrize(
    "known",
    [
        {"losses": []},
        {"losses": [1.0, 2.0]},
        {"losses": [1.0, NAN, 1.0]},
        {"losses": [INF, INF, 1.0], "grad_scaler": True},  # its scale is searched for
    ],
)
def test_quiet(ask, make_measured, make_facts, known):
    assert ask("DP412", make_measured(), [make_facts(**known)]) == []


@pytest.mark.parametrize(("skipped", "fires"), [(20, True), (10, True), (9, False), (None, False)])
def test_steps_that_a_scaler_skips(ask, make_measured, make_facts, skipped, fires):
    window = Window("untraced", 6, durations_ns=[9] * 20, skipped_steps=skipped)
    facts = make_facts(grad_scaler=True, grad_scale=0.25, grad_scaler_where="train.py:5", windows=[window])
    found = ask("DP412", make_measured(), [facts])
    assert [advice.title for advice in found] == [
        f"The GradScaler (train.py:5) skips {skipped} of 20 steps because their gradients are not finite"
    ] * fires


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP412", make_measured(), [])
