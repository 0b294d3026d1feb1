import pytest

from dptune.measured import (
    IdlePart,
    KernelFigures,
    LaunchIdleFigures,
    MemoryFigures,
    Missing,
    OptimizerLaunches,
    QueuedSteps,
    StepTime,
)
from dptune.runfile.compilation import CompileFacts


def launching(hand_made, share):
    ns = int(share * hand_made.STEP_NS)
    return hand_made.Account(window_ns=hand_made.STEP_NS, compute_ns=hand_made.STEP_NS - ns, launch_idle_ns=ns)


def kernels(hand_made):
    return hand_made.figures(
        KernelFigures, counted="kernels", per_step=1467.2, median_ns=2000, total_ns=1, short_share=0.63, top=[]
    )


def run(hand_made, share, **more):
    return hand_made.measured_run(spent=[launching(hand_made, share)], kernels=kernels(hand_made), **more)


def test_a_gpu_that_waits_for_launches(ask, hand_made, make_facts):
    (advice,) = ask("DP601", run(hand_made, 0.24), [make_facts()])
    assert advice.title == (
        "The GPU waits 24 % of a step for kernel launches (1,467 kernels per step): compile the model, "
        "or give each kernel more to do"
    )
    assert advice.saves.high_share == pytest.approx(0.24)
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("high", "medium", "bound")
    compiled = make_facts(compiled=CompileFacts(["train.py:9"]))
    assert "capture CUDA graphs" in ask("DP601", run(hand_made, 0.24), [compiled])[0].title


def test_kernels_take_no_longer_when_traced(ask, hand_made, make_facts):
    """60 % of a traced step are 6 ms of kernels: of a step of 8 ms untraced 2 can be idle, of 6.5 ms 0.5."""
    whole = hand_made.STEP_NS
    traced = hand_made.Account(window_ns=whole, compute_ns=int(0.6 * whole), launch_idle_ns=whole - int(0.6 * whole))
    for step_ms, shares in ((8.0, [pytest.approx(0.25)]), (6.5, [])):
        times = dict.fromkeys(("median_ns", "untraced_median_ns"), int(step_ms * 1e6))
        step = run(hand_made, 0.4).step.model_copy(update=times)
        told = hand_made.measured_run(spent=[traced], kernels=kernels(hand_made), step=step)
        found = ask("DP601", told, [make_facts()])
        assert [one.saves.high_share for one in found] == shares


def test_launching_need_not_be_stretched_by_the_profiler(ask, hand_made, make_facts):
    """2 of traced 10 ms are launching, 5 the host's, 3 computed: of a step of 5 ms the 2 can be 40 %."""
    whole = hand_made.STEP_NS
    parts = {"compute_ns": 3 * whole // 10, "launch_idle_ns": whole // 5, "host_idle_ns": whole // 2}
    step = run(hand_made, 0.4).step.model_copy(update=dict.fromkeys(("median_ns", "untraced_median_ns"), 5_000_000))
    account = hand_made.Account(window_ns=whole, **parts)
    told = hand_made.measured_run(spent=[account], kernels=kernels(hand_made), step=step)
    (advice,) = ask("DP601", told, [make_facts()])
    assert advice.saves.high_share == pytest.approx(0.4)


def test_launches_that_wait_for_their_kernels_have_a_rule_of_their_own(ask, hand_made, make_facts):
    assert ask("DP601", run(hand_made, 0.5), [make_facts(environment={"CUDA_LAUNCH_BLOCKING": "1"})]) == []


def test_quiet(ask, hand_made):
    assert ask("DP601", run(hand_made, 0.14)) == []
    assert ask("DP601", run(hand_made, 0.5, device="cpu")) == []
    churns = [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", malloc_share=0.3)]
    assert ask("DP601", run(hand_made, 0.5, memory=churns)) == []  # of the allocator
    little = [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", malloc_share=0.2)]
    assert len(ask("DP601", run(hand_made, 0.5, memory=little))) == 1


def test_the_gpu_that_waits_longest_in_a_step_holds_up_the_others(ask, hand_made, make_facts):
    """Two of four GPUs launch for 4 of 10 ms, the others wait for them then: 2 are the mean, 4 what can be saved."""
    waiting = {"exposed_waiting_ns": 4 * hand_made.STEP_NS // 10, "communication_ns": 4 * hand_made.STEP_NS // 10}
    busy = hand_made.Account(window_ns=hand_made.STEP_NS, compute_ns=6 * hand_made.STEP_NS // 10, **waiting)
    spent = [busy, launching(hand_made, 0.4), busy, launching(hand_made, 0.4)]
    told = hand_made.measured_run(spent=spent, world=4, kernels=kernels(hand_made))
    (advice,) = ask("DP601", told, [make_facts()])
    assert advice.saves.high_share == pytest.approx(0.4)
    assert advice.title.startswith("The GPU waits 20 % of a step")
    alone = hand_made.measured_run(spent=[spent[1], *[busy] * 3], world=4, kernels=kernels(hand_made))
    assert ask("DP601", alone, [make_facts()]) == []  # it is late, which another rule says


def waited(hand_made, first=0.2, *, compiled=False, of_optimizer=0.1, each=True, queued=None):
    """Time waited for launches: `first` of it before one kernel, and so much of it before the optimizer's launches."""
    return hand_made.figures(
        LaunchIdleFigures,
        idle_ns=1000,
        operations=[IdlePart(name="void cat_kernel<float>(int)", idle_ns=1, share=first, per_step=21.5)],
        operators=[IdlePart(name="aten::as_strided", idle_ns=1, share=0.33, per_step=763.0)],
        optimizer=OptimizerLaunches(
            name="SGD", per_step=440.0, of_per_step=1467.0, idle_share=of_optimizer, for_each_tensor=each
        ),
        compiled=compiled,
        queued=queued,
    )


@pytest.mark.parametrize(("beyond", "confidence"), [(0.2, "medium"), (0.1, "low")])
def test_without_untraced_steps_the_profiler_may_be_the_cause(ask, hand_made, beyond, confidence):
    """Not where the GPU waits for launches beyond all that the profiler can take."""
    figures = waited(hand_made).model_copy(update={"unprofiled_share": beyond})
    traced = StepTime.only("not timed", basis="traced", time_ns=hand_made.STEP_NS)
    (advice,) = ask("DP601", run(hand_made, 0.24, launch_idle=figures, step=traced))
    assert advice.confidence == confidence
    found = {evidence.label: evidence.value for evidence in advice.evidence}
    assert found["lower bound of launch-bound idle time, less 10 us of profiler overhead per event"] == beyond


@pytest.mark.parametrize(
    ("known", "words", "remedy"),
    [
        ({}, "compile the model", "Compile the model, or give each kernel more to do."),
        (
            {"compiled": True},
            "capture CUDA graphs",
            "Capture CUDA graphs, or give each kernel more to do.",
        ),  # the trace shows it, though nothing was recorded
        (
            {"first": 0.86},
            "86 % of that time is before one kernel, `cat_kernel`. Busiest host operator: `aten::as_strided` (763",
            "Find out what the script does before the launch of `cat_kernel`.",
        ),
        (
            {"first": 0.86, "of_optimizer": 0.44},
            "44 % of that time is before launches of SGD, which makes 440 of 1,467 launches, one tensor at a time.",
            "Pass foreach=True or fused=True.",
        ),
        (
            {"of_optimizer": 0.44, "each": False},
            "compile the model",
            "Compile the model, or give each kernel more to do.",
        ),
        # 30 % of the launches, which are not what is waited for
        ({"of_optimizer": 0.08}, "compile the model", "Compile the model, or give each kernel more to do."),
    ],
)
def test_the_remedy_is_for_what_is_waited_for(ask, hand_made, known, words, remedy):
    (advice,) = ask("DP601", run(hand_made, 0.4, launch_idle=waited(hand_made, **known)))
    assert words in advice.title
    assert advice.remedy == remedy
    assert known.get("compiled", False) is ("compile the model" not in advice.title and "graphs" in advice.title)
    assert "before `cat_kernel`" in {one.label for one in advice.evidence}
    assert "while the host runs `aten::as_strided` (763 calls per step)" in {one.label for one in advice.evidence}


def test_what_the_profiler_adds_is_no_advice(ask, hand_made):
    """Steps timed without the profiler say themselves how much the host launches too late."""
    queued = QueuedSteps(numbers=[10], queued=316, length_ns=32_000_000, others_ns=[77_000_000, 83_000_000])
    figures = waited(hand_made, queued=queued)
    traced = StepTime.only("not timed", basis="traced", time_ns=hand_made.STEP_NS)
    with pytest.raises(
        Missing, match="the profiler slows kernel launches: step 10 started with 316 launches queued and took"
    ):
        ask("DP601", run(hand_made, 0.4, launch_idle=figures, step=traced))
    assert len(ask("DP601", run(hand_made, 0.4, launch_idle=figures))) == 1
