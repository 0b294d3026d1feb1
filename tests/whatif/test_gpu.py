"""Steps of GPUs as a program: run again as recorded it is the recording, and changes do what can be done by hand."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import hypot
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.simulator import pairs

from dptune.errors import DptuneError
from dptune.knobs import Value
from dptune.measure import measure
from dptune.measure.across_ranks import across
from dptune.measure.views import view
from dptune.measured import Missing, StepTime
from dptune.trace import load
from dptune.trace.run import Run
from dptune.whatif.assumptions import UNVALIDATED, assumed
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.building import build
from dptune.whatif.gpu.changes import bounded, changed, with_quickest_host, without_profiler
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.parts import Part, having
from dptune.whatif.gpu.precision import in_one_precision
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.recorded import program_of
from dptune.whatif.gpu.stragglers import latest
from dptune.whatif.gpu.uncertainty import interval
from dptune.whatif.predicting import search
from dptune.whatif.run_model import RunModel

from ..measure.handmade import (  # noqa: TID252 - tests are no installed package
    DRAWN,
    LOADER,
    NCCL,
    US,
    Event,
    all_reduce,
    annotation,
    call,
    copy,
    drawn,
    kernel,
    launch,
    load_events,
    on_device,
    operator,
    step,
)
from ..measure.many_ranks import Planted  # noqa: TID252
from ..measure.many_ranks import run as run_of_many  # noqa: TID252
from .test_gpu_units import sharded_run

SAMPLES = Path(__file__).parents[2] / "sample_traces" / "gpu"
LINK = Link(0.0, 1.0)


def program(run: Run) -> Program:
    views = [view(one.rank, one.light) for one in run.ranks]
    return build(views, across(run, views), LINK, len(views), None)


def off(made: Program) -> float:
    return max(abs(at - recorded) for at, recorded in zip(made.run(), made.recorded_ns, strict=True))


def us(made: Program) -> float:
    return made.step_ns() / US


def three_steps(*more: dict[str, object]) -> list[dict[str, object]]:
    """Each launches a at 1 and b at 3 of its 100 us; a runs from 10 to 60, b from 60 to 90."""
    events = []
    for number in range(3):
        at = 100 * number
        events += [
            step(number, at, at + 100),
            launch(2 * number, at + 1, at + 2),
            launch(2 * number + 1, at + 3, at + 4),
        ]
        events += [kernel("a", at + 10, at + 60, 2 * number), kernel("b", at + 60, at + 90, 2 * number + 1)]
    return [*events, *more]


@pytest.mark.parametrize(
    ("change", "step_us"),
    [
        ({}, 100),
        ({"compute.times": 2.0}, 160),  # 100 + 60, one after the other: the next launch has come long before
        ({"compute.times": 1.2}, 100),  # 60 + 36, over by 106: the next begins 9 us after its launch at 101 as before
        ({"host.times": 0.0}, 80),  # a and b, and nothing between
        ({"host.times": 2.0}, 203.5),  # launches at 3 + 2 * 98 and 4 + 196 later, each begins 18 later: at 217 and 417
        ({"syncs.removed": True}, 100),
    ],
)
def test_one_rank_by_hand(tmp_path: Path, change: dict[str, float], step_us: float) -> None:
    made = program(load_events(tmp_path, three_steps()))
    assert off(made) == 0
    assert us(changed(made, change)) == pytest.approx(step_us)


@pytest.mark.parametrize(
    ("change", "step_us"),
    [({}, 100), ({"host.times": 0.0}, 80), ({"compute.times": 2.0}, 160), ({"host.times": 3}, 300)],
)
def test_kernels_of_a_device_whose_clock_is_behind_wait_for_their_launches(
    tmp_path: Path, change: dict[str, float], step_us: float
) -> None:
    """20 us behind: the first kernel of a step begins 11 before its call. Hosts take all but what kernels wait for."""
    late = [event | {"ts": event["ts"] - 20} if event["cat"] == "kernel" else event for event in three_steps()]
    made = program(load_events(tmp_path, late))
    assert off(made) == 0
    assert us(changed(made, change)) == pytest.approx(step_us)


@pytest.mark.parametrize("behind_us", [0, 20])
def test_a_call_that_returns_with_a_device_whose_clock_is_behind_waits_for_it(tmp_path: Path, behind_us: int) -> None:
    """A kernel from 10 to 80, and a loss that is read until 91: with half of the kernel all else comes 35 earlier.

    The kernel after it takes 2, and is over before the call returns by a clock that is behind.
    """
    events = []
    for number in range(6):
        at, first = 100 * number, 3 * number
        events += [step(number, at, at + 100), launch(first, at + 1, at + 2), kernel("a", at + 10, at + 80, first)]
        events += [call("cudaMemcpyAsync", at + 3, at + 91, first + 1)]
        events += [copy("DtoH (Device -> Pageable)", at + 85, at + 90, first + 1)]
        events += [launch(first + 2, at + 92, at + 93), kernel("b", at + 99, at + 101, first + 2)]
    moved = [
        event | {"ts": event["ts"] - behind_us} if event["cat"] in ("kernel", "gpu_memcpy") else event
        for event in events
    ]
    made = program(load_events(tmp_path, moved))
    assert off(made) == 0
    assert us(changed(made, {"compute.times": 0.5})) == pytest.approx(65, abs=1)


@pytest.mark.parametrize(("times", "step_us"), [(1.0, 100), (0.5, 55), (0.0, 55)])
def test_a_step_begins_with_what_it_computes(tmp_path: Path, times: float, step_us: float) -> None:
    """A copy on a stream of its own, and kernels of 30 and 25 us: the second is launched 57 us after the first.

    A quicker host is steps ahead with the copies, and leaves the device the kernels alone.
    """
    events = []
    for number in range(6):
        at, first = 100 * number, 3 * number
        events += [step(number, at, at + 100), launch(first, at + 1, at + 2), launch(first + 1, at + 3, at + 4)]
        events += [launch(first + 2, at + 60, at + 61), copy("HtoD (Pinned -> Device)", at + 10, at + 15, first, 9)]
        events += [kernel("a", at + 12, at + 42, first + 1), kernel("b", at + 69, at + 94, first + 2)]
    made = program(load_events(tmp_path, events))
    assert off(made) == 0
    assert us(changed(made, {"host.times": times})) == pytest.approx(step_us)


@pytest.mark.parametrize(("wanted", "step_us"), [(100, 100), (120, 100), (90, 90), (81, 81), (70, 80)])
def test_the_host_is_as_quick_as_the_step_without_the_profiler_says(
    tmp_path: Path, wanted: float, step_us: float
) -> None:
    """Devices alone take 80, however quick the host is, and as long as recorded where the profiler slowed nothing."""
    made = program(load_events(tmp_path, three_steps()))
    found = without_profiler(made, wanted * US)
    assert us(found) == pytest.approx(step_us, rel=2e-3)
    assert us(changed(found, {"compute.times": 2.0})) == pytest.approx(160)  # the device has enough to do either way


@pytest.mark.parametrize(("step_us", "replayed_us", "told"), [(90, 90, True), (70, 80, False)])
def test_the_ground_is_the_step_without_the_profiler(
    tmp_path: Path, step_us: float, replayed_us: float, told: bool
) -> None:
    """Of 100 us in the trace the devices take 80: a step of 90 is a quicker host, one of 70 cannot be told of."""
    run = load_events(tmp_path, three_steps())
    figures = measure(run)
    took = StepTime.only(
        "no", basis="untraced", time_ns=step_us * US, untraced_median_ns=step_us * US, light_median_ns=100 * US
    )
    ground = RunModel.of(run, figures.model_copy(update={"step": took}))
    assert ground.replayed_ns == pytest.approx(replayed_us * US, rel=2e-3)
    assert ground.error_share == pytest.approx(replayed_us / step_us - 1, abs=2e-3)
    half = ground.predict({"host.times": 0.0})
    least = 80 * US if told else step_us * US  # devices take 80: no step is shorter, and a host saves nothing
    assert half.low_ns == pytest.approx(least, rel=5e-3)
    assert (half.known("step_ns") is not None) == told


def uneven_steps() -> list[dict[str, object]]:
    """Steps of 100, 1000, 1000 and 1000 us that compute for 80 + 5: the host waits before the optimizer's 20 us."""
    events, at = [], 0.0
    for number, took in enumerate((100.0, 1000.0, 1000.0, 1000.0)):
        end = at + took
        events += [
            step(number, at, end),
            launch(2 * number, at + 1, at + 2),
            kernel("a", at + 5, at + 85, 2 * number),
            annotation("Optimizer.step#SGD.step", end - 20, end - 1),
            launch(2 * number + 1, end - 12, end - 11),
            kernel("multi_tensor_apply_kernel<TensorListMetadata<2>>", end - 10, end - 5, 2 * number + 1),
        ]
        at = end
    return events


def test_no_prediction_is_below_what_devices_compute(tmp_path: Path) -> None:
    """The mean of all steps is 775 us, of settled ones 1000: shares of these would make 66 us of 85."""
    run = load_events(tmp_path, uneven_steps())
    assert program(run).busy_ns() == pytest.approx(85 * US)
    ground = RunModel.of(run, measure(run))
    assert ground.step_ns == pytest.approx(775 * US, rel=1e-2)
    no_host = ground.predict({"host.times": 0.0})
    assert no_host.step_ns >= 85 * US
    assert no_host.low_ns >= 85 * US
    assert no_host.high_ns >= no_host.step_ns * 1.015 - 1


@pytest.mark.parametrize(
    ("estimate_ns", "floors_ns", "least_ns", "expected"),
    [
        (1000.0, [800.0], 0.0, (900, 1000, 1200)),  # no floor is reached
        (1000.0, [950.0, 940.0, 960.0], 0.0, (940, 1000, 1200)),  # devices compute for 940 at least
        (1000.0, [1100.0, 900.0, 1150.0], 0.0, (900, 1100, 1200)),  # the estimate's 200, not from 1100 on
        (500.0, [1000.0, 800.0, 2000.0], 0.0, (800, 1000, 2030)),  # 1.5 % of the step above the largest floor
        (500.0, [1000.0], 0.0, (1000, 1000, 1015)),
        (500.0, [300.0], 600.0, (600, 600, 700)),  # the rest of the step takes 600
        (1000.0, [1000.0], 0.0, (1000, 1000, 1200)),
    ],
)
def test_an_interval_holds_the_floor_and_reaches_as_high_as_the_estimate(
    estimate_ns: float, floors_ns: list[float], least_ns: float, expected: tuple[float, float, float]
) -> None:
    assert interval(estimate_ns, 100.0, 200.0, floors_ns, least_ns) == pytest.approx(expected)


def test_a_fused_update_saves_no_more_than_the_update(tmp_path: Path) -> None:
    """The optimizer's step takes 20 us: the 900 before it stay. The interval reaches 15 % beyond what it takes."""
    run = load_events(tmp_path, uneven_steps())
    made = program(run)
    updating = [edge.lag_ns for edges in made.edges for edge in edges if edge.kind == Kind.UPDATING]
    assert updating == [8 * US] * 4  # from its start to its only launch
    assert us(made) - us(changed(made, {"optimizer.fused": True})) <= 20
    ground = RunModel.of(run, measure(run))
    predicted = ground.predict({"optimizer.fused": True})
    assert 0 < ground.step_ns - predicted.low_ns <= 1.15 * 20 * US
    assert ground.step_ns - predicted.low_ns >= ground.step_ns - predicted.step_ns


def test_the_interval_of_a_batch_holds_the_variation_of_steps(tmp_path: Path) -> None:
    """Every second step: 100 and 1000 us, the others 1000 and 1000."""
    run = load_events(tmp_path, uneven_steps())
    ground = RunModel.of(run, measure(run))
    twice, no_syncs = ground.predict({"batch.times": 2.0}), ground.predict({"compute.times": 0.9})
    assert ground.variation_share == pytest.approx(450 / 775, rel=1e-2)
    assert twice.high_ns - twice.low_ns >= 0.4 * twice.step_ns
    assert no_syncs.high_ns - no_syncs.low_ns < 0.1 * no_syncs.step_ns  # compared step by step


def test_no_change_changes_nothing_however_much_steps_vary(tmp_path: Path) -> None:
    """Steps of 100, 160 and 100 us differ by far more than a tenth; a change that does nothing saves nothing."""
    events = [step(0, 0, 100), step(1, 100, 260), step(2, 260, 360), step(3, 360, 520), step(4, 520, 620)]
    for number, (at, until) in enumerate([(0, 90), (100, 240), (260, 350), (360, 510), (520, 610)]):
        events += [launch(number, at + 1, at + 2), kernel("a", at + 10, until, number)]
    run = load_events(tmp_path, events)
    ground = RunModel.of(run, measure(run))
    assert ground.variation_share == pytest.approx(60 / 130)
    assert not ground.missed
    for change in ({}, {"syncs.removed": True}, {"host.times": 1.0}, {"compute.times": 1.0}):
        same = ground.predict(change)
        assert same.low_ns == same.step_ns == same.high_ns == ground.step_ns
    bound = ground.predict({"copies.non_blocking": True})  # there is no copy
    assert bound.low_ns == ground.step_ns


def test_without_the_calls_that_wait(tmp_path: Path) -> None:
    """From 4 to 92 of each step the host waits for b; else the next launch is 9 us after the last one's: at 13."""
    waits = [call("cudaStreamSynchronize", at + 4, at + 92) for at in (0, 100, 200)]
    made = program(load_events(tmp_path, three_steps(*waits)))
    assert off(made) == 0
    assert us(made) == pytest.approx(100)
    assert us(changed(made, {"compute.times": 2.0})) == pytest.approx(100 + 80)
    assert us(changed(made, {"syncs.removed": True})) == pytest.approx(80)


def test_without_waiting_for_batches(tmp_path: Path) -> None:
    """The loader takes the last 8 us of each step: without, the launch at 101 comes at 93, and a begins at 102."""
    waits = [annotation(LOADER, at + 92, at + 100) for at in (0, 100, 200)]
    made = program(load_events(tmp_path, three_steps(*waits)))
    assert off(made) == 0
    assert us(changed(made, {"loader.num_workers": 4})) == pytest.approx(92)
    assert bounded(made, {"loader.num_workers": 4, "host.times": 0.5}) == ["loader.num_workers"]


def test_workers_prepare_batches_meanwhile(tmp_path: Path) -> None:
    """The script prepares a batch in the last 8 us of each step, as long as two workers need for two of them."""
    waits = [annotation(LOADER, at + 92, at + 100) for at in (0, 100, 200)]
    made = replace(program(load_events(tmp_path, three_steps(*waits))), workers=0)
    assert bounded(made, {"loader.num_workers": 4}) == []
    assert us(changed(made, {"loader.num_workers": 4}, Side.MOST)) == pytest.approx(92)
    assert us(changed(made, {"loader.num_workers": 4}, Side.LEAST)) == pytest.approx(100)  # fetching takes as long
    decoding = changed(made, {"batch.times": 40.0, "compute.times": 0.01})  # 320 us for a batch
    assert us(changed(decoding, {"loader.num_workers": 2}, Side.MOST)) == pytest.approx(
        (92 + 160) / 2
    )  # the first is there
    with pytest.raises(Missing, match=r"loader\.num_workers"):
        changed(made, {"loader.num_workers": 0})


def test_queued_operations_follow_each_other_after_a_gap(tmp_path: Path) -> None:
    """In each step c waits for b, 2 us from end to start; a host that takes no time leaves as much before a and b."""
    events = []
    for number in range(10):
        at, first = 200 * number, 3 * number
        events += [
            step(number, at, at + 200),
            *(launch(first + place, at + called, at + called + 1) for place, called in enumerate((1, 51, 53))),
            kernel("a", at + 10, at + 20, first),
            kernel("b", at + 60, at + 80, first + 1),
            kernel("c", at + 82, at + 92, first + 2),
        ]
    made = program(load_events(tmp_path, events))
    assert off(made) == 0
    assert us(changed(made, {"host.times": 0.0})) == pytest.approx(10 + 20 + 10 + 3 * 2)


def test_copies_that_hold_up_nothing(tmp_path: Path) -> None:
    """The host waits for a copy of 30 us after b, and launches 9 us before the next begins: 10 to 130, then 139."""
    events = []
    for number in range(3):
        at, first = 130 * number, 3 * number
        events += [
            step(number, at, at + 130),
            *(launch(first + place, at + 1 + 2 * place, at + 2 + 2 * place) for place in range(2)),
            kernel("a", at + 10, at + 60, first),
            kernel("b", at + 60, at + 90, first + 1),
            call("cudaMemcpyAsync", at + 6, at + 7, first + 2),
            on_device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 90, at + 120, first + 2),
            call("cudaStreamSynchronize", at + 8, at + 122),
        ]
    made = program(load_events(tmp_path, events))
    assert off(made) == 0
    assert us(made) == pytest.approx(130)
    free: dict[str, Value] = {"copies.non_blocking": True}
    assert us(changed(made, free)) == pytest.approx(80 + 0.4 * 30)  # a, b and the copy, one after the other
    assert us(changed(made, free, Side.LEAST)) == pytest.approx(80 + 30)
    sized = replace(
        made, uploads=dict.fromkeys(having(made.parts, Part.UPLOAD) & {*made.places((Kind.COPY,))}, 140_000)
    )
    assert us(changed(sized, free)) == pytest.approx(80 + 2 + 140 / 14)
    assert us(changed(sized, free, Side.MOST)) == pytest.approx(80 + 2 + 140 / 50)
    assert us(changed(sized, free, Side.LEAST)) == pytest.approx(80 + 2 + 140 / 6)
    tiny = replace(sized, uploads=dict.fromkeys(sized.uploads, 700_000))  # no slower than from pageable memory
    assert us(changed(tiny, free, Side.LEAST)) == pytest.approx(80 + 30)
    assert us(changed(made, {"loader.pin_memory": True})) == pytest.approx(80)
    assert bounded(made, {**free, "loader.pin_memory": True}) == ["loader.pin_memory"]


def test_pinning_makes_no_batch_come_earlier_from_workers(tmp_path: Path) -> None:
    """The last wait in a step, of 3 ms of 5 or 1 ms of 3: what is over 2 ms is waiting for a worker, not fetching."""
    for wait, length, pinned in ((3000, 5000, 5000), (1000, 3000, 2000)):
        events = []
        for number in range(4):
            at = length * number
            events += [step(number, at, at + length), launch(number, at + 1, at + 2)]
            events += [kernel("a", at + 10, at + 60, number), annotation(LOADER, at + length - wait, at + length)]
        made = program(load_events(tmp_path, events))
        assert us(made) == pytest.approx(length)
        assert us(changed(made, {"loader.num_workers": 4})) == pytest.approx(length - wait)
        assert us(changed(made, {"loader.pin_memory": True})) == pytest.approx(pinned)
        assert us(changed(replace(made, workers=0), {"loader.pin_memory": True})) == pytest.approx(length)


def two_ranks(late: int) -> list[list[Event]]:
    """Three steps: a until 60, on the second rank until 60 + late; then 4,000 bytes in 20 us, once both are there."""
    ranks = []
    for rank in range(2):
        events = []
        for number in range(3):
            at, ends = 200 * number, 60 + late * rank
            events += [
                step(number, at, at + 200),
                launch(2 * number, at + 1, at + 2),
                launch(2 * number + 1, at + 3, at + 4),
            ]
            events += [kernel("a", at + 10, at + ends, 2 * number)]
            events += [all_reduce(at + ends, at + 80 + late, 2 * number + 1, 1000, "0", 2)]
        ranks.append(events)
    return ranks


@pytest.mark.parametrize(
    ("change", "step_us"),
    [
        ({"link.gb_per_s": 0.1}, 10 * 20 + 70),  # ten times the 20 us; a until 70
        ({"link.gb_per_s": 0.5}, 200),  # within what the host leaves idle
        ({"host.times": 0.0, "ddp.comm_hook": "fp16"}, 70 + 10),
        ({"host.times": 0.0, "ddp.comm_hook": "bf16", "compute.times": 2.0}, 140 + 10),
        ({"host.times": 0.0}, 70 + 20),
        ({"host.times": 0.0, "world_size": 4}, 70 + 30),  # a ring of four moves 1.5 times what a pair does
        # Two nodes of two: 1 within as before, and 1 of a node at half of the rate.
        (
            {
                "host.times": 0.0,
                "world_size": 4,
                "nodes": 2,
                "allreduce.algorithm": "hierarchical",
                "link.between_gb_per_s": 0.5,
            },
            70 + 60,
        ),
    ],
)
def test_two_ranks_by_hand(tmp_path: Path, change: dict[str, object], step_us: float) -> None:
    """The second rank's a takes 70 us, the first's 50: both wait for it."""
    made = program(load_events(tmp_path, *two_ranks(20)))
    assert off(made) == 0
    assert us(made) == pytest.approx(200)
    assert us(changed(made, change)) == pytest.approx(step_us)


@pytest.mark.parametrize(
    ("change", "step_us"),
    [({}, 70 + 20), ({"straggler.removed": True}, 50 + 20), ({"straggler.balanced": True}, 60 + 20)],
)
def test_a_rank_whose_kernels_take_longer(tmp_path: Path, change: dict[str, Value], step_us: float) -> None:
    """Of a host that takes no time."""
    made = program(load_events(tmp_path, *two_ranks(20)))
    assert latest(made) == 1
    assert us(changed(made, {"host.times": 0.0, **change})) == pytest.approx(step_us)


def test_a_rank_whose_host_is_late(tmp_path: Path) -> None:
    """Kernels of 50 us on both; the second rank's host launches them 30 us later, and both wait for the collective."""
    ranks = []
    for late in (0, 30):
        events = []
        for number in range(4):
            at, begins = 230 * number, 230 * number + late
            events += [
                step(number, at, at + 230),
                launch(2 * number, begins + 1, begins + 2),
                launch(2 * number + 1, begins + 3, begins + 4),
                call("cudaStreamSynchronize", begins + 5, at + 112),
                kernel("a", begins + 10, begins + 60, 2 * number),
                all_reduce(begins + 60, at + 110, 2 * number + 1, 1000, "0", 2),
            ]
        ranks.append(events)
    made = program(load_events(tmp_path, *ranks))
    assert off(made) == 0
    assert us(made) == pytest.approx(230)
    assert us(changed(made, {"straggler.removed": True})) == pytest.approx(200, abs=2)
    assert us(changed(made, {"straggler.balanced": True})) == pytest.approx(215, abs=2)
    with pytest.raises(Missing, match="single rank"):
        changed(replace(made, world_size=1, edges=[[] for _ in made.edges]), {"straggler.removed": True})


def of_unknown_size(ranks: list[list[Event]]) -> list[list[Event]]:
    """The same without the sizes of collectives, as older torch writes them."""
    sizes = {"In msg nelems", "Out msg nelems", "dtype"}
    return [
        [
            {**one, "args": {key: value for key, value in one.get("args", {}).items() if key not in sizes}}
            for one in events
        ]
        for events in ranks
    ]


@pytest.mark.parametrize(
    ("change", "step_us"),
    [
        ({}, 70 + 20),
        ({"straggler.removed": True}, 50 + 20),
        ({"straggler.balanced": True}, 60 + 20),
        ({"compute.times": 2.0}, 140 + 20),
    ],
)
def test_collectives_of_unknown_size_wait_for_all_ranks(
    tmp_path: Path, change: dict[str, Value], step_us: float
) -> None:
    """As those of known size do; what another link would take is not known."""
    made = program(load_events(tmp_path, *of_unknown_size(two_ranks(20))))
    assert not made.messages
    assert off(made) == 0
    assert us(changed(made, {"host.times": 0.0, **change})) == pytest.approx(step_us)
    for lacking in ({"link.gb_per_s": 0.5}, {"world_size": 4}, {"ddp.bucket_cap_mb": 50}):
        with pytest.raises(Missing):
            changed(made, lacking)


@pytest.mark.long
def test_buckets_of_unknown_size_are_no_reductions(tmp_path: Path) -> None:
    """Two ranks of DDP on an H200, with and without the sizes of their all-reduces."""
    kept = [SAMPLES / "ranks-nccl-ddp" / f"rank-0000{rank}.trace.json.gz" for rank in (0, 1)]
    traces = [json.loads(gzip.decompress(path.read_bytes())) for path in kept]
    for rank, (trace, events) in enumerate(
        zip(traces, of_unknown_size([trace["traceEvents"] for trace in traces]), strict=True)
    ):
        (tmp_path / f"{rank}.json").write_text(json.dumps({**trace, "traceEvents": events}))
    without = program(load([str(tmp_path)], cached=False))
    sized = program(load([*map(str, kept)], cached=False))
    assert sized.reductions
    assert sized.messages
    assert not without.reductions
    assert not without.messages
    assert without.step_ns() == sized.step_ns()
    assert without.places((Kind.UNSIZED,)) == sized.places((Kind.COLLECTIVE,))


def test_another_link_leaves_collectives_of_unknown_size_as_they_are(tmp_path: Path) -> None:
    """The first of each step has a size, the second has none: 10 us each, of a host that takes no time."""
    sized = two_ranks(0)
    (bare,) = {tuple(one["args"]) for one in of_unknown_size(sized)[0] if one["name"] == NCCL}
    for events in sized:
        for number in range(3):
            events.append(launch(100 + number, 200 * number + 5, 200 * number + 6))
            second = all_reduce(200 * number + 80, 200 * number + 90, 100 + number, 1000, "0", 2)
            events.append({**second, "args": {key: second["args"][key] for key in bare}})
    made = program(load_events(tmp_path, *sized))
    assert len(made.messages) == 3
    slower = {"host.times": 0.0, "link.gb_per_s": made.link.bytes_per_ns / 2 if made.link else 0.0}
    assert us(changed(made, {"host.times": 0.0})) == pytest.approx(50 + 20 + 10, abs=1)
    assert us(changed(made, slower)) == pytest.approx(50 + 40 + 10, abs=1)
    sentence = "collectives of unknown size take as long as recorded"
    assert sentence in [*assumed(made, slower, traced=True)]
    assert sentence not in [*assumed(made, {"compute.times": 0.5}, traced=True)]


@pytest.mark.parametrize(
    ("batch", "side", "step_us"),
    [
        (16, Side.LEAST, 140 + 20),  # twice the 70 us, and the collective as before
        (32, Side.LEAST, 4 * 70 + 20),
        (16, Side.MOST, 70 + 0.5 * 68 + 20),  # the smallest kernel takes 2 us
        (16, Side.MIDDLE, 70 + 0.95 * 68 + 20),
        (4, Side.LEAST, 35 + 20),
    ],
)
def test_a_larger_batch_by_hand(tmp_path: Path, batch: int, side: Side, step_us: float) -> None:
    """Of a host that takes no time: kernels grow with the batch, the collective does not."""
    made = replace(program(load_events(tmp_path, *two_ranks(20))), batch=8, samples=16.0)
    then = changed(made, {"host.times": 0.0, "loader.batch_size": batch}, side)
    assert us(then) == pytest.approx(step_us)
    assert (then.batch, then.samples) == (batch, 2 * batch)
    relative = changed(replace(made, batch=None), {"host.times": 0.0, "batch.times": batch / 8}, side)
    assert us(relative) == pytest.approx(step_us)
    assert relative.samples == 2 * batch


def test_a_batch_that_is_hidden_by_the_host_costs_nothing(tmp_path: Path) -> None:
    """Of the 200 us the device is idle for 110: half as much again of the 50 or 70 fits."""
    made = replace(program(load_events(tmp_path, *two_ranks(20))), batch=8)
    assert us(changed(made, {"loader.batch_size": 12})) == pytest.approx(200)


def test_a_batch_is_waited_for_as_many_times_as_long(tmp_path: Path) -> None:
    """The loader takes the last 8 us of each step, and with twice the batch 16; kernels are done long before."""
    waits = [annotation(LOADER, at + 92, at + 100) for at in (0, 100, 200)]
    made = replace(program(load_events(tmp_path, three_steps(*waits))), batch=8)
    assert us(changed(made, {"loader.batch_size": 16, "compute.times": 0.1})) == pytest.approx(108)
    queued = replace(made, has_workers=True)  # 8 us is what taking a batch from a queue takes, at least 0
    assert us(changed(queued, {"loader.batch_size": 16, "compute.times": 0.1})) == pytest.approx(100)
    assert us(changed(queued, {"loader.batch_size": 16, "compute.times": 0.1}, Side.LEAST)) == pytest.approx(108)


def test_kernels_may_grow_half_as_much_as_the_batch(tmp_path: Path) -> None:
    """80 us of kernels become 152.2, 118 or 160; the host takes no time. Beside it what no replay of a GPU knows:
    1.5 % of the step and 15 % of what is added to the 100 us."""
    run = load_events(tmp_path, three_steps())
    ground = RunModel.of(run, measure(run))
    known = replace(ground, model=replace(ground.model, batch=8), variants=())
    told = known.predict({"host.times": 0.0, "loader.batch_size": 16})
    step_us = 80 + 0.95 * (48 + 28)
    assert told.step_ns == pytest.approx(step_us * US, rel=1e-3)
    unknown = 0.015 * step_us, 0.15 * (step_us - 100)
    assert step_us - hypot(0.45 * 76, *unknown) < 118
    assert told.low_ns == pytest.approx(118 * US, rel=1e-3)  # what kernels take at least
    assert told.high_ns == pytest.approx((step_us + hypot(160 - step_us, *unknown)) * US, rel=1e-3)
    assert UNVALIDATED in told.assumptions


def test_a_batch_that_is_not_known(tmp_path: Path) -> None:
    made = program(load_events(tmp_path, three_steps()))
    with pytest.raises(Missing, match="DataLoader"):
        changed(made, {"loader.batch_size": 16})
    with pytest.raises(Missing, match="at least one sample"):
        changed(replace(made, batch=8), {"loader.batch_size": 0})


def test_precision_by_the_peaks_of_the_device(tmp_path: Path) -> None:
    """a multiplies in fp32 for 50 us, of which the smallest kernel takes 2, on matrix units up to 6; b adds for 30."""
    events, names = three_steps(), {"a": "ampere_sgemm_128x64_nn", "b": "vectorized_elementwise_kernel"}
    for one in events:
        one["name"] = names.get(str(one["name"]), one["name"])
    made = program(load_events(tmp_path, events))
    idle: dict[str, Value] = {"host.times": 0.0}
    tf32: dict[str, Value] = {**idle, "precision.float32_matmul": "high"}
    assert us(changed(made, tf32)) == pytest.approx(30 + 2 + 48 / (8 * 0.62))
    assert us(changed(made, tf32, Side.LEAST)) == pytest.approx(30 + 6 + 44 / (8 * 0.4))
    hopper = replace(made, peaks={"fp32": 67e12, "tf32": 494.5e12, "bf16": 989.5e12})
    high = changed(hopper, {**idle, "precision.float32_matmul": "high"})
    assert us(high) == pytest.approx(30 + 2 + 48 / (494.5 / 67 * 0.62))
    assert us(changed(made, {**idle, "precision.autocast": "bf16"})) == pytest.approx(30 + 2 + 48 / (16 * 0.62))
    assert us(changed(made, {**idle, "precision.autocast": "bf16"}, Side.MOST)) == pytest.approx(
        15 + 2 + 48 / (16 * 1.3)
    )
    with pytest.raises(Missing, match="no TF32"):
        changed(replace(made, peaks={"fp32": 15.7e12}), {"precision.float32_matmul": "high"})
    volta = replace(made, peaks={"fp32": 15.7e12, "fp16": 125e12})
    assert us(changed(volta, {**idle, "precision.autocast": "fp16"})) == pytest.approx(
        30 + 2 + 48 / (125 / 15.7 * 0.62)
    )
    with pytest.raises(Missing, match="no matrix units for bf16"):
        changed(volta, {"precision.autocast": "bf16"})
    shared = changed(replace(made, shared=True), {**idle, "precision.float32_matmul": "high"})
    assert us(shared) == pytest.approx(0.75 * 30 + 2 + 48 / (8 * 0.62))  # another rank's kernels are shorter, too
    assert us(changed(made, {**idle, "compute.times": 0.5})) == pytest.approx(
        40
    )  # kernels are kernels in any precision
    assert bounded(made, {"precision.autocast": "bf16", "compile.model": True}) == ["compile.model"]
    assert us(changed(made, {**idle, "compile.model": True})) == pytest.approx(50)


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("ampere_scudnn_128x64_relu_interior_nn_v1", None),  # its name says that it convolves
        ("ampere_sgemm_64x64_nn", "aten::cudnn_convolution"),
        ("ampere_sgemm_64x64_nn", "aten::convolution_backward"),
        ("ampere_sgemm_64x64_nn", "aten::_cudnn_rnn"),
    ],
)
def test_products_and_convolutions_have_a_switch_of_tf32_each(tmp_path: Path, name: str, around: str | None) -> None:
    """a multiplies for 50 us, b convolves for 30. A pass in 16 bits leaves nothing to TF32."""
    events, names = three_steps(), {"a": "ampere_sgemm_128x64_nn", "b": name}
    for event in events:
        event["name"] = names.get(str(event["name"]), event["name"])
    if around:
        events += [operator(around, at + 2.5, at + 5) for at in (0, 100, 200)]
    made = program(load_events(tmp_path, events))

    def took_us(**settings: Value) -> float:
        return us(changed(made, {"host.times": 0.0, **{n.replace("__", "."): v for n, v in settings.items()}}))

    products, convolutions = 2 + 48 / (8 * 0.62), 2 + 28 / (8 * 0.62)
    assert took_us(precision__float32_matmul="high") == pytest.approx(products + 30)
    assert took_us(cudnn__allow_tf32=True) == pytest.approx(50 + convolutions)
    both: dict[str, Value] = {"precision__float32_matmul": "high", "cudnn__allow_tf32": True}
    assert took_us(**both) == pytest.approx(products + convolutions)
    halves = 2 + 48 / (16 * 0.62) + 2 + 28 / (16 * 0.62)
    assert took_us(precision__autocast="bf16") == pytest.approx(halves)
    assert took_us(precision__autocast="bf16", **both) == pytest.approx(halves)
    with pytest.raises(Missing, match="TF32 kernels would take in fp32"):
        took_us(precision__autocast="bf16", precision__float32_matmul="highest")


def test_units_in_16_bits_leave_nothing_to_autocast() -> None:
    units: dict[str, Value] = {"fsdp.param_dtype": "bf16", "host.times": 0.5}
    others: dict[str, Value] = {"precision.autocast": "bf16", "cudnn.allow_tf32": True}
    assert in_one_precision({**others, **units}) == units
    fp32: dict[str, Value] = {**others, "fsdp.param_dtype": "fp32"}
    assert in_one_precision(fp32) == {"fsdp.param_dtype": "fp32", "precision.autocast": "bf16"}
    assert in_one_precision({"precision.autocast": "off", "cudnn.allow_tf32": True})["cudnn.allow_tf32"]


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize(("ranks", "step_us"), [(2, 70), (1, 50)])
def test_parameters_gathered_ahead(tmp_path: Path, ranks: int, step_us: float, sized: bool) -> None:
    """What they wait for is the slower rank's compute, or where one rank was read its own."""
    events = (two_ranks(20) if sized else of_unknown_size(two_ranks(20)))[:ranks]
    for own in events:
        for one in own:
            if "Collective name" in one.get("args", {}):
                one["args"]["Collective name"] = "_allgather_base"
    made = program(load_events(tmp_path, *events))
    asked: dict[str, Value] = {"fsdp.prefetch": True, "host.times": 0.0}
    assert us(changed(made, asked)) == pytest.approx(step_us)
    assert bounded(made, asked) == ["fsdp.prefetch"]


def test_without_all_gathers_none_are_prefetched(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no all-gather"):
        changed(program(load_events(tmp_path, *two_ranks(20))), {"fsdp.prefetch": True})


def test_a_tree_is_of_all_reduces_alone(tmp_path: Path) -> None:
    """Of four ranks: an all-gather goes round the ring in 1.5 times the 20 us; an all-reduce in a tree in 2 times."""
    for kind, took in (("allreduce", 40), ("_allgather_base", 30)):
        events = two_ranks(20)
        for one in [one for own in events for one in own if "Collective name" in one.get("args", {})]:
            one["args"]["Collective name"] = kind
        (tmp_path / kind).mkdir()
        made = program(load_events(tmp_path / kind, *events))
        asked: dict[str, Value] = {"host.times": 0.0, "world_size": 4, "allreduce.algorithm": "tree"}
        assert us(changed(made, asked)) == pytest.approx(70 + took)
        assert us(changed(made, {**asked, "link.gb_per_s": 0.5})) == pytest.approx(70 + 2 * took)
        with pytest.raises(Missing, match=r"loader\.num_workers"):
            changed(made, {"loader.num_workers": 0})


def test_workers_that_are_kept_are_bounded_as_workers(tmp_path: Path) -> None:
    made = program(load_events(tmp_path, three_steps()))
    asked: dict[str, Value] = {"loader.num_workers": 4, "loader.persistent_workers": True}
    assert bounded(made, asked) == ["loader.num_workers"]
    assert us(changed(made, asked)) == pytest.approx(100)
    with pytest.raises(Missing):
        changed(made, {"loader.persistent_workers": True})


@pytest.mark.long
def test_only_what_the_run_has_is_listed(tmp_path: Path) -> None:
    """A sharded run that draws from no DataLoader, and has no all-reduces."""
    simulated = sharded_run(losses_read=1, optimizer="foreach")
    timelines = pairs.simulated(simulated, traced=True, steps=pairs.ALIKE)
    pairs.write_traces(simulated, timelines, tmp_path, steps=pairs.ALIKE)
    run = load([tmp_path])
    measured = measure(run)
    asked = {name for prediction in search(run, measured).predictions for name in prediction.changes}
    assert asked == {
        "host.times",
        "syncs.removed",
        "cuda.graphs",
        "straggler.removed",
        "compute.times",
        "precision.autocast",
        "optimizer.fused",
        "fsdp.prefetch",
        "fsdp.reshard_after_forward",
        "wrapper",
    }


def test_what_a_trace_does_not_tell(tmp_path: Path) -> None:
    made = program(load_events(tmp_path, three_steps()))
    for change in ({"ddp.bucket_cap_mb": 1.0}, {"ddp.comm_hook": "powersgd"}, {"ddp.comm_hook": "fp16"}):
        with pytest.raises(Missing):
            changed(made, change)


@pytest.mark.long
@given(st.lists(DRAWN, min_size=4, max_size=30), st.floats(0, 1), st.sampled_from(["host.times", "compute.times"]))
def test_nothing_takes_longer_when_parts_are_quicker(tmp_path_factory, parts, times, what) -> None:
    events, moments = drawn(parts)
    borders = [moments[0], moments[len(parts) // 3], moments[2 * len(parts) // 3], moments[-1]]
    events += [step(at, first, last) for at, (first, last) in enumerate(pairwise(borders))]
    try:
        made = program(load_events(tmp_path_factory.mktemp("program"), events))
    except Missing:
        assume(False)
    assert off(made) == 0
    quicker = changed(made, {what: times})
    for at, recorded in zip(quicker.run(), made.recorded_ns, strict=True):
        assert at <= recorded + 1e-6
    assert from_start_us(quicker) <= from_start_us(made) + 1e-6
    assert from_start_us(changed(made, {what: 2 - times})) >= from_start_us(made) - 1e-6


def from_start_us(made: Program) -> float:
    """The mean of the device's first two steps, the first of which begins as recorded.

    A later step, or the host's, begins sooner if parts are quicker, and may end as before.
    """
    return us(replace(made, steps=[replace(stretch, calls=None) for stretch in made.steps[:2]]))


SEVERAL = ("nanogpt_8xh100", "torchrec_resnet18_2xv100")  # runs of several ranks


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SEVERAL[1:], id="two ranks"),
        pytest.param(SEVERAL, id="several", marks=pytest.mark.thorough),
        pytest.param((), id="all", marks=pytest.mark.thorough),
    ],
)
def test_real_traces_run_again_as_they_ran(real_traces: Path, names: tuple[str, ...]) -> None:
    """Every folder that holds one run of GPUs: to the nanosecond; and the step of the program is the measured one."""
    told = {}
    for folder in sorted(path for path in real_traces.iterdir() if path.is_dir() and path.name != "damaged"):
        if names and folder.name not in names:
            continue
        try:
            run = load([folder])
            figures = measure(run)
            made, ground = program_of(run, figures), RunModel.of(run, figures)
        except (DptuneError, Missing):
            continue
        assert off(made) == 0, folder
        told[folder.name] = ground.error_share
    assert set(names or SEVERAL) <= set(told)
    assert told.get("nanogpt_8xh100", 0.0) < 0.02


def test_a_step_that_devices_limit_does_not_tell_how_fast_the_host_is(tmp_path: Path) -> None:
    """Half of the host's time leaves a device-bound step as it is: what makes the device quicker may save more."""
    run = load_events(tmp_path, three_steps())
    program = RunModel.of(run, measure(run)).model
    assert isinstance(program, Program)
    slow_device = changed(program, {"compute.times": 20.0})  # the host is never waited for
    quick = with_quickest_host(slow_device)
    assert quick.step_ns() >= 0.98 * slow_device.step_ns()
    faster = {"compute.times": 0.0}
    assert changed(quick, faster).step_ns() == pytest.approx(changed(slow_device, faster).step_ns() / 2, rel=0.05)
    assert with_quickest_host(program).step_ns() >= 0.98 * program.step_ns()  # one that the host limits stays


def test_what_starts_as_a_full_queue_has_room_comes_after_it(tmp_path: Path) -> None:
    """A launch that blocks returns as a kernel begins, and the next one starts in that nanosecond.

    The time in the blocked call is the device's, not the host's: a host twice as fast waits there as long.
    """
    events, queued = [], 100
    for number in range(6 * queued):
        begins = 1_000 * (number + 1)
        room = begins - queued * 1_000  # the kernel that begins then frees the place of this one
        since = room - 990 if number >= queued else number
        events += [launch(number, since, max(room, since + 1)), kernel("k", begins, begins + 1_000, number)]
    events += [step(number, number * queued * 1_000, (number + 1) * queued * 1_000) for number in range(6)]
    made = program(load_events(tmp_path, events))
    assert off(made) == 0
    host_us = sum(edge.lag_ns for edges in made.edges for edge in edges if edge.kind == Kind.HOST) / US
    assert host_us < 0.2 * made.recorded_ns[-1] / US


@pytest.mark.parametrize(("host", "step_us"), [(1.0, 10), (0.2, 5)])
def test_a_host_that_launched_all_before_the_first_step_limits_a_quick_device(
    tmp_path: Path, host: float, step_us: float
) -> None:
    """Steps of 10 us on the host and kernels of 100 that take 5."""
    events = []
    for number in range(4):
        at = 10 * number
        events += [step(number, at, at + 10), launch(number, at + 1, at + 2)]
        events.append(kernel("a", 100 * (number + 1), 100 * (number + 2), number))
    made = program(load_events(tmp_path, events))
    assert off(made) == 0
    assert us(made) == pytest.approx(100)
    quick = changed(made, {"compute.times": 0.05, "host.times": host})
    assert us(quick) == pytest.approx(step_us)


@cache
def with_and_without_straggler_ns(late: int = 0, delay_us: float = 0.0) -> tuple[float, float]:
    """Steps of eight ranks, one of which is late, and those without it."""
    with TemporaryDirectory() as folder:
        made = program(run_of_many(Path(folder), 2, Planted(delays=lambda rank, _: delay_us * (rank == late))))
    return made.step_ns(), changed(made, {"straggler.removed": True}).step_ns()


@pytest.mark.long
@given(late=st.integers(0, 7), delay_us=st.sampled_from([500.0, 3_000.0]))
@settings(max_examples=2)
def test_without_a_straggler_no_gap_between_its_kernels_is_longer_than_on_others(late: int, delay_us: float) -> None:
    """Each step of the late rank begins with a gap that no call explains; the same run without it is the truth."""

    even = with_and_without_straggler_ns()
    before, after = with_and_without_straggler_ns(late, delay_us)
    assert even[1] == pytest.approx(even[0], rel=0.005)
    assert before == pytest.approx(even[0] + 1000 * delay_us, rel=0.01)
    assert after == pytest.approx(even[0], rel=0.005)
