"""What the device waited to be launched: by phase, operator, optimizer and waiting kernel; by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.measure.across_ranks import across
from dptune.measure.host.launch_idle import launch_idle
from dptune.measure.views import view
from dptune.measured import LaunchIdleFigures, short_name

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import BACKWARD, US, Event, annotation, launched, load_events, measure_events, operator, step


def launching(*, together: bool = False) -> list[Event]:
    """Four steps of 200 that the host limits: an operator's kernel, a backward one, and an optimizer's loop.

    gemm runs from 10 to 20, launched by `aten::mm` [0,9), of which `aten::view` takes [2,5) and [5,8). The backward
    kernel begins at 60, launched at 50, in an operator [40,55) inside autograd's range. The optimizer launches at 100,
    110, ... until 140, each kernel 5 later for 2.
    """
    events: list[Event] = []
    for number in range(4):
        at, first = 200 * number, 20 * number
        events += [step(number, at, at + 200), operator("aten::mm", at, at + 9)]
        events += [operator("aten::view", at + 2, at + 5), operator("aten::view", at + 5, at + 8)]
        events += launched("gemm", at + 8, at + 10, at + 20, first)
        events += [operator(BACKWARD, at + 30, at + 56), operator("aten::mul", at + 40, at + 55)]
        events += launched("mul_kernel", at + 50, at + 60, at + 70, first + 1)
        events += [annotation("Optimizer.step#SGD.step", at + 95, at + 145)]
        for place in range(5):
            begin = at + 100 + 10 * place
            name = "aten::_foreach_add_" if together else "aten::add_"
            events += [operator(name, begin - 4, begin + 2)]
            events += launched("add_kernel", begin, begin + 5, begin + 7, first + 2 + place)
    return events


@pytest.fixture
def found(tmp_path: Path) -> LaunchIdleFigures:
    return measure_events(tmp_path, launching()).launch_idle


def test_by_the_operation_that_waited(found: LaunchIdleFigures) -> None:
    """Idle in a whole step, of what ends a gap: see the comments; host time without operators is no launching.

    gemm ends the gap from 147: only the operator [200,209) and the latency since 209 are launching: 10. mul_kernel from
    20: the ranges [30,56) until its launch is over at 51, and 9 from then on: 30. The five add_kernels from 70: 96 to
    105 is 9; then from 107, 117, ...: 96 + 10 n to 105 + 10 n less what it lies before 107: 8 for each.
    """
    gemm, mul, add = 10, 30, 9 + 4 * 8
    whole = {one.name: one.idle_ns / US for one in found.operations}
    # Three whole steps, begun at their gemm; the fourth is left out, as it lacks what follows its last kernel.
    assert whole == {"add_kernel": 3 * add, "mul_kernel": 3 * mul, "gemm": 3 * gemm}
    assert found.idle_ns == 3 * (gemm + mul + add) * US
    assert sum(one.share for one in found.operations) == pytest.approx(1)
    assert {one.name: one.per_step for one in found.operations}["add_kernel"] >= 5


def test_idle_beyond_what_the_profiler_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """19 events of the host in a step of 200: at 1 us each 62 of the 81 idle are left, of 181; at 10 us nothing."""
    monkeypatch.setattr("dptune.measure.host.launch_idle.EVENT_NS", US)
    assert measure_events(tmp_path, launching()).launch_idle.unprofiled_share == pytest.approx(62 / 181)
    monkeypatch.setattr("dptune.measure.host.launch_idle.EVENT_NS", 10 * US)
    assert measure_events(tmp_path, launching()).launch_idle.unprofiled_share == 0


def test_a_rank_that_computes_on_its_cpu_waits_for_no_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is idle for 3 x 81 and 71, of 3 x 200 and 137: less 19 events of a step each, 238 of 661."""
    monkeypatch.setattr("dptune.measure.host.launch_idle.EVENT_NS", US)
    computing = [step(number, 200 * number, 200 * number + 200) for number in range(4)]
    computing += [operator("aten::mm", 200 * number + 5, 200 * number + 150) for number in range(4)]
    run = load_events(tmp_path, launching(), computing)
    spent = across(run, [view(rank.rank, rank.light) for rank in run.ranks]).spent
    assert [device.operations.on_cpu for _, device, _ in spent] == [False, True]
    assert launch_idle(spent, "phases are not known").unprofiled_share == pytest.approx(238 / 661)


def test_by_phase(found: LaunchIdleFigures) -> None:
    phases = {one.name: one.idle_ns / US for one in found.phases}
    assert phases == {"optimizer": 3 * 41, "backward": 3 * 30, "forward": 2 * 10, "unknown": 10}  # of the next step


def test_by_the_operator_that_the_host_ran(found: LaunchIdleFigures) -> None:
    """Time in an operator and in none inside it. The two views together hold the host longer than `aten::mm` itself."""
    operators = {one.name: (one.idle_ns / US, one.per_step) for one in found.operators}
    assert operators["aten::view"] == (3 * 6, 2.0)
    assert operators["aten::mm"] == (3 * 3, 1.0)
    assert operators["aten::mul"] == (3 * 15, 1.0)


def test_an_optimizer_that_loops(found: LaunchIdleFigures, tmp_path: Path) -> None:
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.per_step, optimizer.of_per_step) == ("SGD", 5.0, 7.0)
    assert optimizer.for_each_tensor
    assert optimizer.idle_share == pytest.approx(41 / 81)
    (tmp_path / "foreach").mkdir()
    together = measure_events(tmp_path / "foreach", launching(together=True)).launch_idle.optimizer
    assert not together.for_each_tensor


def starting(device_free: int) -> list[Event]:
    """Four steps of ten kernels of 3. The host launches the first ten by 54, and from 60 on one every 10.

    The device begins at `device_free`: from 70 on it finds those ten in the queue, and four more by 100.
    """
    events: list[Event] = []
    free = device_free
    for number in range(4):
        since = 60 + 100 * (number - 1) if number else 0
        events.append(step(number, since, since + (100 if number else 60)))
        for place in range(10):
            called = since + place * (10 if number else 6)
            begin = max(called + 4, free)
            free = begin + 3
            events.append(operator("aten::mm", called - 2 * bool(place), called + 2))
            events += launched("gemm", called, begin, free, 10 * number + place)
    return events


def test_steps_that_start_with_work_queued_show_what_the_profiler_adds(tmp_path: Path) -> None:
    """The first window runs from 70 to 100 without a gap, the second to 164, the third takes 100; the last is short."""
    queued = measure_events(tmp_path, starting(70)).launch_idle.queued
    assert (queued.numbers, queued.queued, queued.length_ns) == ([0], 10, 30 * US)
    assert queued.others_ns == [64 * US, 100 * US]


def test_without_work_queued_nothing_is_said_of_the_profiler(tmp_path: Path) -> None:
    figures = measure_events(tmp_path, starting(0))
    assert figures.launch_idle.known("queued") is None
    assert figures.launch_idle.missing["queued"] == "the first traced steps do not show the untraced step time"


def test_a_public_run_that_the_profiler_made_launch_bound(findings: Path) -> None:
    """Its log says 30 to 36 ms without the profiler; the model is compiled."""
    path = findings / "traces" / "nanogpt_h2d_launchbound_false.json.gz"
    found = reading.measured(path).launch_idle
    assert (found.operations[0].name, found.compiled) == ("linear_relu_square_kernel", True)
    assert found.operations[0].share > 0.9
    assert found.queued.length_ns / 1e6 == pytest.approx(31.9, abs=0.1)
    report = reading.reported(path)
    assert "DP601" not in {one.rule for one in report.advice}
    (why,) = [one.reason for one in report.skipped if one.rule == "DP601"]
    assert why == (
        "the profiler slows kernel launches: step 10 started with 316 launches queued and took 31.9 ms without "
        "waiting for a launch; the other steps took 76.8 to 83.0 ms"
    )
    assert any(one.text.endswith("expect about 31.9 ms") for one in report.trust.findings)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("torchrec_resnet18_2xv100", "`aten::as_strided` (763 calls per step)"),
        pytest.param(
            "kineto_resnet50_loader/234cf25*",
            "waits 17 % of a step for kernel launches (1,478 kernels per step)",  # 87 % before work of forward passes
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_what_public_runs_wait_for(real_traces: Path, path: str, words: str) -> None:
    report = reading.reported(next(real_traces.glob(path)))
    (advice,) = [one for one in report.advice if one.rule == "DP601"]
    assert words in advice.title


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4>(float*)",
            "at::native::CatArrayBatchedCopy",
        ),
        ("linear_relu_square_kernel", "linear_relu_square_kernel"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long)", "ncclDevKernel_SendRecv"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("<lambda>", "<lambda>"),
        ("train.py(31): <module>", "train.py(31): <module>"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128>(cutlass_80_tensorop::Params)",
            "cutlass_80_tensorop_s1688gemm_128x128",
        ),
        ("triton_per_fused_" + 90 * "x", "triton_per_fused_" + 60 * "x" + "..."),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short
