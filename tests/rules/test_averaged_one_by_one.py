"""Gradients that the script averages itself: counts are made up, shares are worked out by hand."""

from dataclasses import replace

import pytest

from dptune.measured import LinkFigures, Missing
from dptune.runfile.communication import CallFacts, DdpFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.window import Window


def run(make_facts, calls=400, sent_bytes=4_000, spent_ms=30, timed=True, **more):
    """10 steps of 10 ms, in each of which 40 all-reduces carry 400 bytes; 5 steps were timed without the profiler."""
    call = CallFacts("all_reduce", "train.py:46", [0, 1], calls, untraced_ns=spent_ms * 1_000_000)
    call.sent_bytes = sent_bytes
    window = [Window("untraced", 3, [10_000_000] * 5)] if timed else []
    optimizers = [OptimizerFacts("AdamW", parameter_tensors=40, parameters=100)]
    facts = {"calls": [call], "calls_steps": 10, "optimizers": optimizers, "windows": window, "ddp": [], **more}
    return [make_facts(rank=rank, **facts) for rank in (0, 1)]


def test_an_all_reduce_for_each_parameter(ask, make_measured, make_facts):
    (advice,) = ask("DP110", make_measured(device="cpu"), run(make_facts))
    assert advice.title == (
        "train.py:46 averages gradients in 40 all-reduces per step (60 % of the step): DDP sends them in buckets "
        "during backward"
    )
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.6))  # 30 of 50 ms
    assert (advice.impact, advice.confidence, advice.changes) == ("high", "high", [])


@pytest.mark.parametrize(
    "changed",
    [
        {"calls": 100},  # metrics: few, and not for each parameter
        {"sent_bytes": 400},  # as many, of numbers
        {"spent_ms": 0},
        {"ddp": [DdpFacts("Net")]},
        {"optimizers": [OptimizerFacts("AdamW", parameter_tensors=4, parameters=100)]},
    ],
)
def test_quiet(ask, make_measured, make_facts, changed):
    assert ask("DP110", make_measured(device="cpu"), run(make_facts, **changed)) == []


def test_what_was_not_timed_is_missing(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no untraced steps were timed"):
        ask("DP110", make_measured(device="cpu"), run(make_facts, timed=False))


@pytest.mark.parametrize(
    ("function", "after_updates", "title", "numerics"),
    [
        (
            "all_reduce",
            400,
            "average_models (train.py:46) averages parameters in 40 all-reduces per step (60 % of the step): "
            "DDP keeps the replicas equal without these calls",
            "changes",
        ),
        (
            "broadcast",
            0,
            "average_models (train.py:46) broadcasts parameters in 40 broadcasts per step (60 % of the step): "
            "DDP keeps the replicas equal without these calls",
            "same",
        ),
        (
            "all_reduce",
            100,  # of 400: the last ones of a step that an optimizer of two makes
            "average_models (train.py:46) averages gradients in 40 all-reduces per step (60 % of the step): "
            "DDP sends them in buckets during backward",
            "same",
        ),
    ],
)
def test_parameters_after_each_step(ask, make_measured, make_facts, function, after_updates, title, numerics):
    facts = run(make_facts)
    for call in (one.calls[0] for one in facts):
        call.function, call.after_updates, call.caller = function, after_updates, "average_models"
    (advice,) = ask("DP110", make_measured(device="cpu"), facts)
    assert (advice.title, advice.numerics) == (title, numerics)


def test_what_is_saved_by_the_links(ask, make_measured, make_facts, hand_made):
    """60 and 50 % of steps of 10 ms are calls; two buckets of 0.4 ms and 400 bytes at 1 GB/s would take 8 %."""
    fitted = {"alpha_us": 300.0, "alpha_high_us": 400.0, "algbw_gb_per_s": 1.0}
    known = {"ranks": [0, 1], "scope": "intra-node", "basis": "sweep", "sizes": [], "calls": 9}
    link = hand_made.figures(LinkFigures, kind="all_reduce", **known, **fitted)
    facts = run(make_facts)
    facts[1].calls = [replace(facts[1].calls[0], untraced_ns=25_000_000)]
    measured = make_measured(device="cpu", links=[link])
    (advice,) = ask("DP110", measured, facts)
    assert advice.saves.basis == "timed"
    left = (800_000 + 400) / measured.step.time_ns
    assert advice.saves.low_share == pytest.approx(0.8 * (0.5 - left))
    assert advice.saves.predicted_share == pytest.approx(0.55 - left)
    assert advice.saves.high_share == pytest.approx(1.1 * 0.6)
    (advice,) = ask("DP110", measured, facts[:1])
    assert advice.saves.basis == "bound"
