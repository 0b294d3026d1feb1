"""Gradients that the script averages itself: counts are made up, shares are worked out by hand."""

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import CallFacts, DdpFacts
from dptune.runfile.facts import OptimizerFacts, Window


def run(make_facts, calls=400, sent_bytes=4_000, spent_ms=30, timed=True, **more):
    """10 steps of 10 ms, in each of which 40 all-reduces carry 400 bytes; 5 steps were timed without the profiler."""
    call = CallFacts("all_reduce", "train.py:46", [0, 1], calls, unprofiled_ns=spent_ms * 1_000_000)
    call.sent_bytes = sent_bytes
    window = [Window("unprofiled", 3, [10_000_000] * 5)] if timed else []
    optimizers = [OptimizerFacts("AdamW", parameter_tensors=40, parameters=100)]
    facts = {"calls": [call], "calls_steps": 10, "optimizers": optimizers, "windows": window, "ddp": [], **more}
    return [make_facts(rank=rank, **facts) for rank in (0, 1)]


def test_an_all_reduce_for_each_parameter(ask, make_measured, make_facts):
    (advice,) = ask("DP110", make_measured(device="cpu"), run(make_facts))
    assert advice.title == (
        "train.py:46 averages gradients in 40 all-reduces per step, 60 % of it: DistributedDataParallel sends them in "
        "buckets, during the backward pass"
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
    with pytest.raises(Missing, match="no steps were timed"):
        ask("DP110", make_measured(device="cpu"), run(make_facts, timed=False))
