import pytest

from dptune.measured import KernelFigures, MemoryFigures
from dptune.runfile.facts import CompileFacts


def launching(hand_made, share):
    ns = int(share * hand_made.STEP_NS)
    return hand_made.Account(window_ns=hand_made.STEP_NS, compute_ns=hand_made.STEP_NS - ns, launch_idle_ns=ns)


def kernels(hand_made):
    return hand_made.figures(
        KernelFigures, counted="kernels", per_step=1467.2, median_ns=2000, total_ns=1, short_share=0.63, top=[]
    )


def run(hand_made, share, **more):
    return hand_made.measured_run(account=launching(hand_made, share), kernels=kernels(hand_made), **more)


def test_a_gpu_that_waits_for_launches(ask, hand_made, make_facts):
    (advice,) = ask("DP601", run(hand_made, 0.24), [make_facts()])
    assert advice.title == (
        "The GPU waits 24 % of a step for kernels to be launched, 1467 of them in each step: compile the model, "
        "or give each of them more to do"
    )
    assert advice.saves.high_share == pytest.approx(0.24)
    assert (advice.severity, advice.confidence, advice.saves.basis) == ("error", "medium", "bound")
    compiled = make_facts(compiled=CompileFacts(["train.py:9"]))
    assert "capture CUDA graphs" in ask("DP601", run(hand_made, 0.24), [compiled])[0].title


def test_quiet(ask, hand_made):
    assert ask("DP601", run(hand_made, 0.14)) == []
    assert ask("DP601", run(hand_made, 0.5, device="cpu")) == []
    churns = [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", malloc_share=0.3)]
    assert ask("DP601", run(hand_made, 0.5, memory=churns)) == []  # of the allocator
    little = [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", malloc_share=0.2)]
    assert len(ask("DP601", run(hand_made, 0.5, memory=little))) == 1
