"""DDP's reducer in GPU steps: gradients, the collectives that reduce them, and other buckets, by hand and as recorded.

Each step of two ranks computes f (10 to 100 us), then b0 to b3 of 100 us each, which make a gradient of 150 kB ready.
Two buckets of two gradients are reduced over 1 GB/s (300 us each), when b1 and b3 have ended; u updates for 50 us.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptune.commands.shared.reading import measured_of
from dptune.knobs import Value
from dptune.measure.across_ranks import across
from dptune.measure.views import view
from dptune.measured import Measured, Missing
from dptune.predicted import Prediction
from dptune.runfile.communication import DdpFacts
from dptune.trace.run import Run
from dptune.whatif.cpu.buckets import MIB
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.building import build
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.reductions import sizes_of_gradients
from dptune.whatif.predicting import Predictor
from dptune.whatif.run_model import RunModel

from .. import reading  # noqa: TID252 - tests are no installed package
from ..measure.handmade import (  # noqa: TID252 - tests are no installed package
    US,
    annotation,
    kernel,
    launch,
    load_events,
    on_device,
    operator,
    step,
)

SAMPLES = Path(__file__).parents[2] / "sample_traces" / "gpu"
AUTOGRAD, STREAM = 2, 20
NODE = "autograd::engine::evaluate_function: "
SIZE_MB = 150_000 / MIB  # of a gradient
IDLE = {"host.times": 0.0}
MEASURED = {1.0: 1.01, 5.0: 1.00, 100.0: 1.17}  # times the step, by bucket size: tests/benchmarks/GPU.md


def one_pass(at: float, first: int, transfer: float = 300.0) -> list[dict[str, Any]]:
    """A forward and a backward pass that start 10 us after a moment; its launches are numbered from `first` on."""
    events = [
        annotation("DistributedDataParallel.forward", at, at + 4),
        operator("aten::linear", at + 1, at + 3),
        launch(first, at + 2, at + 3),
        kernel("f", at + 10, at + 100, first),
    ]
    sent_until = 0.0
    for gradient in range(4):
        called, ends = at + 5 + 6 * gradient, at + 200 + 100 * gradient
        events += [
            operator(f"{NODE}AddmmBackward0", called, called + 2, AUTOGRAD),
            launch(first + 1 + gradient, called, called + 1, AUTOGRAD),
            kernel(f"b{gradient}", ends - 100, ends, first + 1 + gradient),
            operator(f"{NODE}torch::autograd::AccumulateGrad", called + 3, called + 5, AUTOGRAD),
        ]
        if gradient % 2:
            begins = max(ends, sent_until)
            sent_until = begins + transfer
            args = {"Collective name": "allreduce", "In msg nelems": 75_000, "Out msg nelems": 75_000, "dtype": "Float"}
            events += [
                launch(first + 5 + gradient, called + 4, called + 5, AUTOGRAD),
                on_device(
                    "kernel",
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                    begins,
                    sent_until,
                    first + 5 + gradient,
                    STREAM,
                    **args,
                    **{"Process Group Name": "0", "Group size": 2},
                ),
            ]
    return events


def three_steps(passes: int = 1) -> list[dict[str, Any]]:
    """Of 1,000 us for each pass, all launched in the first of them; the optimizer's kernel follows the last bucket."""
    events = []
    for number in range(3):
        at, first = 1000.0 * passes * number, 100 * number
        events.append(step(number, at, at + 1000 * passes))
        for place in range(passes):
            events += one_pass(at + 1000 * place, first + 20 * place)
        ends = at + 1000 * (passes - 1)
        events += [
            annotation("Optimizer.step#SGD.step", ends + 60, ends + 70),
            launch(first + 90, ends + 65, ends + 66),
            kernel("u", ends + 900, ends + 950, first + 90),
        ]
    return events


def program(run: Run, ddp: DdpFacts | None = None) -> Program:
    views = [view(rank.rank, rank.light) for rank in run.ranks]
    return build(views, across(run, views), Link(0.0, 1.0), len(views), ddp=ddp)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return program(load_events(tmp_path_factory.mktemp("ddp"), three_steps(), three_steps()))


def reduced(alone_us: list[float], ready_us: list[float]) -> float:
    """When the last of new collectives ends, from when the first gradient is ready; the last is ready after 300 us.

    Beside compute a collective is assumed to take 1.14 times as long; the first recorded one had compute for 200 of its
    300 us, so both took 574.4 us of 600 alone.
    """
    level = (300 / (1 + 0.14 * 200 / 300) + 300) / 600
    free = 0.0
    for size, ready in zip(alone_us, ready_us, strict=True):
        start, alone = max(ready, free), size * level
        free = start + alone * (1 + 0.14 * min(1.0, max(0.0, 300 - start) / alone))
    return free


def us(made: Program) -> float:
    return made.step_ns() / US


def test_the_program_is_the_recording(two_ranks: Program) -> None:
    assert max(abs(at - then) for at, then in zip(two_ranks.run(), two_ranks.recorded_ns, strict=True)) == 0
    (first, *_) = two_ranks.reductions
    assert len(two_ranks.reductions) == 3
    assert [bucket.last for bucket in first.buckets] == [1, 3]
    assert first.gradient_bytes == (150_000,) * 4
    ready = [two_ranks.recorded_ns[place] - two_ranks.recorded_ns[first.ready[1][0]] for place in first.ready[1]]
    assert ready == [0, 100 * US, 200 * US, 300 * US]


@pytest.mark.parametrize(
    ("change", "step_us"),
    [
        ({}, 90 + 200 + 600 + 50),
        ({"link.gb_per_s": 2.0}, 90 + 400 + 150 + 50),  # the second bucket waits for its gradients, not for the first
        ({"link.gb_per_s": 1e6}, 90 + 400 + 50),
        ({"link.gb_per_s": 0.5}, 90 + 200 + 1200 + 50),
        ({"ddp.bucket_cap_mb": 100.0}, 190 + reduced([600], [300]) + 50),  # nothing overlaps
        ({"ddp.bucket_cap_mb": SIZE_MB}, 190 + reduced([150] * 4, [0, 100, 200, 300]) + 50),
        ({"ddp.bucket_cap_mb_list": f"{SIZE_MB},100"}, 190 + reduced([150, 450], [0, 300]) + 50),
        ({"ddp.bucket_cap_mb": 100.0, "link.gb_per_s": 2.0}, 190 + reduced([300], [300]) + 50),
        (
            {"ddp.bucket_cap_mb": 100.0, "ddp.comm_hook": "bf16"},
            190 + reduced([300], [300]) + 1.5 + 50,
        ),  # 1.5 MB are cast
        ({"optimizer.fused": True}, 90 + 200 + 600 + (48.2 + 0.05 * 1.8) / 3),  # one kernel instead of loops
    ],
)
def test_by_hand(two_ranks: Program, change: dict[str, Any], step_us: float) -> None:
    """Of a host that takes no time, so that steps follow each other."""
    assert us(changed(two_ranks, {**IDLE, **change})) == pytest.approx(step_us)


def test_a_new_bucket_starts_when_its_gradients_are_ready_however_far_ahead_the_host_is(two_ranks: Program) -> None:
    """Each gradient's kernel is launched 95 to 395 us before it starts, each collective 4 us after that launch."""
    alone = changed(two_ranks, {"ddp.bucket_cap_mb": SIZE_MB})
    times, reduction = alone.run(), alone.reductions[1]
    for rank, ready in reduction.ready.items():
        begins = [times[bucket.begins[rank]] - times[ready[0]] for bucket in reduction.buckets]
        ends = [reduced([150] * number, [0, 100, 200][:number]) for number in (1, 2, 3)]
        assert begins == pytest.approx([0, *(end * US for end in ends)])


def test_sizes_of_gradients_follow_from_the_time_of_copying_them() -> None:
    """1,200 bytes by 2, 102 and 302 ns more than 98 % of the smallest kernel's time; a bucket of one gradient is it."""
    assert sizes_of_gradients(4, [2, 3], [1_200, 7], None, [100, 200, 400, 300]) == (6, 301, 893, 7)
    assert sizes_of_gradients(4, [2, 3], [1_200, 7], None, []) == (400, 400, 400, 7)


def test_the_buckets_that_the_run_has_are_no_change(two_ranks: Program) -> None:
    assert changed(two_ranks, {"ddp.bucket_cap_mb": 2 * SIZE_MB}) is two_ranks
    assert changed(two_ranks, {"ddp.no_sync": True}) is two_ranks  # there is one pass in each step


def test_recorded_sizes_of_gradients_are_used(tmp_path: Path) -> None:
    """The first gradient is all but 30 bytes of the 600 kB, so a bucket of 1 kB holds it alone."""
    facts = DdpFacts("", grad_ready_order=[3, 2, 1, 0], gradient_sizes=[10, 10, 10, 599_970])
    made = program(load_events(tmp_path, three_steps(), three_steps()), facts)
    assert made.reductions[0].gradient_bytes == (599_970, 10, 10, 10)
    assert us(changed(made, {**IDLE, "ddp.bucket_cap_mb": 1000 / MIB})) == pytest.approx(
        190 + reduced([599.97, 0.03], [0, 300]) + 50, abs=0.1
    )


def test_only_the_last_pass_of_a_step_reduces(tmp_path: Path) -> None:
    """Of two passes the first no longer waits for its buckets: 490 us of kernels, and 940 of the second."""
    made = program(load_events(tmp_path, three_steps(2), three_steps(2)))
    assert len(made.reductions) == 6
    quiet = changed(made, {"ddp.no_sync": True})
    assert us(made) == pytest.approx(2000)
    assert us(changed(quiet, IDLE)) == pytest.approx(490 + 940)
    assert len(quiet.reductions) == 3
    assert {len(reduction.calls) for reduction in quiet.reductions} == {4}  # two collectives of each rank
    assert us(quiet) < 2000 - 4  # 4 us from the call before it to that of a collective
    both = changed(made, {**IDLE, "ddp.no_sync": True, "ddp.bucket_cap_mb": 100.0})
    assert us(both) == pytest.approx(490 + 190 + reduced([600], [300]) + 50)


def test_a_first_bucket_needs_torchs_own_sizes(two_ranks: Program) -> None:
    """Of three or more buckets those between the first and the last hold 25 MiB or more."""
    whole = changed(two_ranks, {**IDLE, "ddp.first_bucket_mb": 1.0})
    assert us(whole) == pytest.approx(190 + reduced([600], [300]) + 50)  # all 600 kB are in the first
    three = changed(two_ranks, {"ddp.bucket_cap_mb": SIZE_MB})
    with pytest.raises(Missing, match="defaults, so the first bucket"):
        changed(three, {"ddp.first_bucket_mb": 1.0})


@pytest.mark.parametrize("size_mb", [5.0, *(pytest.param(size, marks=pytest.mark.thorough) for size in (1.0, 100.0))])
def test_on_a_card(size_mb: float) -> None:
    """Two ranks on an H200 with buckets of 29 and 21 MB: they are found on both, with the recorded gradients."""
    model, times = reading.modelled(SAMPLES / "ranks-nccl-ddp"), MEASURED[size_mb]
    assert isinstance(model.model, Program)
    assert len(model.model.reductions) == 6
    assert sum(model.model.reductions[0].gradient_bytes) == 50_438_144
    assert model.predict({"ddp.bucket_cap_mb": 25.0}).step_ns == model.step_ns
    prediction = model.predict({"ddp.bucket_cap_mb": size_mb})
    assert prediction.low_ns < times * model.step_ns < prediction.high_ns
    assert prediction.step_ns == pytest.approx(times * model.step_ns, rel=0.04)


@pytest.mark.parametrize("change", [{"ddp.bucket_cap_mb": 5.0}, {"ddp.comm_hook": "bf16"}])
def test_no_program_is_built_for_buckets_that_one_rank_of_two_does_not_show(
    change: dict[str, Value], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, measured = measured_of([str(SAMPLES / "ranks-nccl-ddp" / "rank-00000.trace.json.gz")], None, cached=False)
    assert "all ranks" in str(RunModel.of(run, measured).predict({"ddp.bucket_cap_mb": 5.0}).missing["step_ns"])
    monkeypatch.setattr(RunModel, "of", lambda *_: pytest.fail("built"))
    with pytest.raises(Missing, match="on all ranks"):
        Predictor(run, measured)(change)


def test_the_same_changes_are_predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order; 1 and True are two values."""
    asked: list[dict[str, Value]] = []

    class Ground:
        def predict(self, changes: dict[str, Value]) -> Prediction:
            asked.append(changes)
            return Prediction.only("not replayed", changes=changes)

    monkeypatch.setattr(RunModel, "of", lambda *_: Ground())
    predicting = Predictor(reading.loaded(SAMPLES / "ranks-nccl-ddp"), reading.measured(SAMPLES / "ranks-nccl-ddp"))
    both: dict[str, Value] = {"ddp.bucket_cap_mb": 5.0, "ddp.no_sync": True}
    first = predicting(both)
    assert predicting(dict(reversed(both.items()))) is first
    assert predicting({**both, "ddp.no_sync": 1}) is not first
    assert len(asked) == 2


def test_of_both_ranks_buckets_are_predicted_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    run, model = reading.loaded(SAMPLES / "ranks-nccl-ddp"), reading.modelled(SAMPLES / "ranks-nccl-ddp")
    built: list[Run] = []

    def counted(run: Run, _measured: Measured) -> RunModel:
        built.append(run)
        return model

    monkeypatch.setattr(RunModel, "of", counted)
    predicting = Predictor(run, reading.measured(SAMPLES / "ranks-nccl-ddp"))
    assert predicting({"ddp.bucket_cap_mb": 5.0}).known("step_ns")
    assert predicting({"ddp.comm_hook": "bf16"}).known("step_ns")
    assert built == [run]
