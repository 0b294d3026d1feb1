"""The engine obeys the rules of hosts, streams, collectives and queues, whatever is drawn."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import exp
from pathlib import Path
from statistics import mean

import pytest
from tests.simulator import machine, pairs, settings, training
from tests.simulator.actions import COLLECTIVE
from tests.simulator.changes import CHANGES, Run
from tests.simulator.ddp import buckets
from tests.simulator.engine import Simulation
from tests.simulator.model import Parameter
from tests.simulator.timeline import DeviceEvent, Timeline

RECORDED = Path(__file__).parents[2] / "sample_traces" / "gpu"
FEW = {
    "layers": 2,
    "width": 512,
    "heads": 8,
    "tokens": 128,
    "strategy": "ddp",
    "losses_read": 0,
    "loader": None,
}  # a small model: its steps are quickly simulated


def run_of(seed: int, ranks: int = 2, **changed: object) -> Run:
    drawn = replace(settings.drawn(seed, ranks), **{**FEW, **changed})  # type: ignore[arg-type]
    return machine.drawn(seed, ranks), drawn


def step_ns(run: Run) -> float:
    """The mean step, without the profiler."""
    steps = 3
    timelines = pairs.simulated(run, traced=False, steps=steps)
    return mean(step.window_ns for timeline in timelines for step in pairs.accounts(timeline, steps))


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def timelines(request: pytest.FixtureRequest) -> tuple[Run, list[Timeline]]:
    run = run_of(4, ranks=4, batch=4, strategy=request.param, precision="bf16")
    return run, Simulation(run[0], training.scripts(*run), steps=4).run()


def by_stream(timeline: Timeline) -> dict[int, list[DeviceEvent]]:
    streams = defaultdict(list)
    for operation in timeline.device:
        streams[operation.work.stream].append(operation)
    return streams


def test_operations_of_a_stream_run_one_after_another_in_the_order_of_their_launches(
    timelines: tuple[Run, list[Timeline]],
) -> None:
    (machine_, _), ranks = timelines
    gap_ns = machine_.device.queued_gap_us * 1e3 * exp(-3 * machine_.noise.gap) - 1  # noise is cut at three deviations
    for timeline in ranks:
        for operations in by_stream(timeline).values():
            assert all(a.end_ns + gap_ns <= b.start_ns for a, b in pairwise(operations))
            assert all(a.correlation < b.correlation for a, b in pairwise(operations))


def test_an_operation_starts_after_its_launch(timelines: tuple[Run, list[Timeline]]) -> None:
    (machine_, _), ranks = timelines
    latency_ns = machine_.device.launch_latency_us * 1e3 * exp(-3 * machine_.noise.gap) - 1
    for timeline in ranks:
        launches = {host.correlation: host.start_ns for host in timeline.host if "aunch" in host.name}
        kernels = [operation for operation in timeline.device if operation.work.kind != "copy"]
        assert all(operation.start_ns >= launches[operation.correlation] + latency_ns for operation in kernels)


def test_data_is_transferred_once_the_last_rank_has_come(timelines: tuple[Run, list[Timeline]]) -> None:
    _, ranks = timelines
    calls = [[operation for operation in timeline.device if operation.work.kind == COLLECTIVE] for timeline in ranks]
    assert len({len(of_rank) for of_rank in calls}) == 1
    for stream in {operation.work.stream for operation in calls[0]}:
        of_stream = [[operation for operation in of_rank if operation.work.stream == stream] for of_rank in calls]
        for together in zip(*of_stream, strict=True):
            assert {operation.transfer_ns for operation in together} == {
                max(operation.start_ns for operation in together)
            }
            assert len({operation.end_ns for operation in together}) == 1


def test_a_queue_holds_no_more_launches_than_its_depth() -> None:
    found, chosen = run_of(2, batch=32, precision="fp32")
    shallow = replace(found, device=replace(found.device, queue_depth=50))
    (timeline, _) = Simulation(shallow, training.scripts(shallow, chosen), steps=3).run()
    starts = [operation.start_ns for operation in by_stream(timeline)[7]]
    stream = {operation.correlation for operation in by_stream(timeline)[7]}
    calls = [host for host in timeline.host if host.correlation in stream]
    # the 51st launch before an operation's start has returned at the earliest as that operation started
    assert all(call.end_ns >= start for call, start in zip(calls[51:], starts, strict=False))
    blocked = [call for call in calls if call.end_ns - call.start_ns > 50_000]
    assert blocked, "the run is bound by the device: its host waits for room in the queue"


def test_the_same_run_twice_is_the_same() -> None:
    run = run_of(5, batch=4)
    first, second = (pairs.simulated(run, traced=True, steps=2) for _ in range(2))
    assert first == second


@pytest.mark.long
def test_no_change_is_no_change() -> None:
    run = run_of(6, batch=4)
    same = CHANGES["compute.times"].apply(CHANGES["host.times"].apply(run, "1"), "1")
    assert step_ns(same) == step_ns(run)


def test_a_step_that_the_device_limits_scales_with_its_kernels() -> None:
    run = run_of(7, batch=32, precision="fp32")
    fast = replace(run[0], link=machine.Link(300.0, 5.0, 1.0)), run[1]
    assert 1.9 < step_ns(CHANGES["compute.times"].apply(fast, "2")) / step_ns(fast) <= 2.0


@pytest.mark.long
def test_a_step_that_the_host_limits_does_not() -> None:
    run = run_of(8, batch=2, precision="bf16")
    slow_host = replace(run[0], host=run[0].host.times(4), link=machine.Link(300.0, 5.0, 1.0)), run[1]
    assert step_ns(CHANGES["compute.times"].apply(slow_host, "0.5")) / step_ns(slow_host) > 0.97
    assert step_ns(CHANGES["host.times"].apply(slow_host, "2")) / step_ns(slow_host) == pytest.approx(2, rel=0.03)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (12, 13))])
def test_a_faster_link_never_lengthens_a_step(seed: int, strategy: str) -> None:
    found, chosen = run_of(seed, batch=4, strategy=strategy)
    run = found.without_noise(), chosen
    faster = replace(run[0], link=replace(run[0].link, gb_per_s=2 * run[0].link.gb_per_s)), run[1]
    # a wait that is over before the stream gets to it costs no gap: some microseconds either way
    assert step_ns(faster) <= 1.001 * step_ns(run)


@pytest.mark.long
def test_the_profiler_slows_a_host_and_not_a_device() -> None:
    def ratio(batch: int, host: Callable[[machine.Host], machine.Host]) -> float:
        found, chosen = run_of(9, batch=batch, precision="fp32")
        run = replace(found, host=host(found.host)), chosen
        traced, untraced = (
            mean(
                step.window_ns
                for timeline in pairs.simulated(run, traced, steps=2)
                for step in pairs.accounts(timeline, steps=2)
            )
            for traced in (True, False)
        )
        return traced / untraced

    assert ratio(32, lambda host: host) == pytest.approx(1.0, abs=0.01)
    assert ratio(2, lambda host: host.times(2)) > 1.05


def test_gradients_of_micro_batches_are_reduced_once_with_no_sync() -> None:
    run = run_of(10, batch=4, micro_batches=4)
    quiet = CHANGES["ddp.no_sync"].apply(run, "true")
    calls = [
        sum(operation.work.kind == COLLECTIVE for operation in timelines[0].device)
        for timelines in (Simulation(side[0], training.scripts(*side), steps=1).run() for side in (run, quiet))
    ]
    assert calls[0] == 4 * calls[1]


def test_buckets_are_closed_once_they_are_full_as_on_a_real_card() -> None:
    facts = json.loads((RECORDED / "ranks-nccl-ddp" / "rank-00000.facts.json").read_text())["ddp"][0]
    ready = [Parameter(str(index), (facts["gradient_sizes"][index] // 4,), 0) for index in facts["grad_ready_order"]]
    made = buckets(ready, (facts["bucket_cap_bytes"],))
    sizes = [sum(4 * parameter.elements for parameter in bucket) for bucket in made]
    assert sizes == facts["rebuilt_bucket_sizes"]
