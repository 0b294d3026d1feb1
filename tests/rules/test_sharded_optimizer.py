import pytest

from dptune.measured import MemoryFigures
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import OptimizerFacts

ZERO = OptimizerFacts("ZeroRedundancyOptimizer", "train.py:40")
DDP = DdpFacts("Net", gradient_bytes=4_000_000_000)  # 1e9 parameters: 8 GB of state, of which this rank has half
ROWS = ("broadcast", "optimizer", 0.12), ("all_reduce", "backward", 0.3)


def memory(hand_made, reserved):
    kept = {"peak_reserved_bytes": int(reserved), "capacity_bytes": int(40e9)}
    return [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", **kept)]


def test_what_sending_parameters_takes(ask, make_measured, make_facts, hand_made):
    run = make_measured(overlap=hand_made.overlap(*ROWS), memory=memory(hand_made, 31e9))
    (advice,) = ask("DP202", run, [make_facts(ddp=[DDP], optimizers=[ZERO])])
    assert advice.title == (
        "ZeroRedundancyOptimizer broadcasts parameters for 12 % of a step: a plain optimizer sends none"
    )
    assert "train.py:40" in advice.evidence[0].label
    assert (advice.impact, advice.saves.basis) == ("medium", "bound")
    assert advice.saves.high_share == pytest.approx(0.12)


def test_quiet_where_the_state_does_not_fit(ask, make_measured, make_facts, hand_made):
    """4 GB more than 33 of 40 GB is more than nine tenths of them."""
    run = make_measured(overlap=hand_made.overlap(*ROWS), memory=memory(hand_made, 33e9))
    assert ask("DP202", run, [make_facts(ddp=[DDP], optimizers=[ZERO])]) == []


def test_quiet_without_it_and_where_it_costs_little(ask, make_measured, make_facts, hand_made):
    run = make_measured(device="cpu", overlap=hand_made.overlap(*ROWS))
    assert ask("DP202", run, [make_facts(ddp=[DDP], optimizers=[OptimizerFacts("AdamW")])]) == []
    assert len(ask("DP202", run, [make_facts(ddp=[DDP], optimizers=[ZERO])])) == 1
    cheap = make_measured(device="cpu", overlap=hand_made.overlap(("broadcast", "optimizer", 0.04)))
    assert ask("DP202", cheap, [make_facts(ddp=[DDP], optimizers=[ZERO])]) == []
