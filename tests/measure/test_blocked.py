"""Calls that hold the host until the device is ready, in the account, the critical path and the replay alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dptune.measure import measure
from dptune.measure.views import light_views
from dptune.measured import PATH, Measured
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.recorded import program_of

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import US, Event, call, copy, kernel, launch, load_events, measure_events, operator, step

LOSS = "DtoH (Device -> Pageable)"


def reading_the_loss(copying: list[Event] | None = None, number: int = 0) -> list[Event]:
    """A step of 100 us: a kernel from 10 to 80, and from 3 on a call that reads the loss, which returns at 91."""
    at, first = 100 * number, 10 * number
    return [
        step(number, at, at + 100),
        launch(first, at + 1, at + 2),
        kernel("a", at + 10, at + 80, first),
        operator("aten::item", at + 3, at + 92),
        *(copying or [call("cudaMemcpyAsync", at + 3, at + 91, first + 1), copy(LOSS, at + 85, at + 90, first + 1)]),
    ]


def path_us(figures: Measured) -> dict[str, float]:
    return {name.removesuffix("_ns"): getattr(figures.path, name) / US for name in PATH if getattr(figures.path, name)}


def test_a_copy_from_pageable_memory_is_a_blocking_call(tmp_path: Path) -> None:
    """The device is idle from 80 to 85 and from 90 to 110: held until 91, and then what follows a blocking call.

    From 92 on no operator runs until the step at 100 launches at 101, over at 102; the rest is that launch's latency.
    """
    figures = measure_events(tmp_path, [event for number in range(4) for event in reading_the_loss(number=number)])
    account = figures.ranks[0].devices[0].steps[1].account
    idle = {"sync": account.sync_idle_ns, "launch": account.launch_idle_ns, "host": account.host_idle_ns}
    assert {name: ns / US for name, ns in idle.items()} == {"sync": 5 + 1 + 1 + 1, "launch": 8, "host": 9}
    assert account.dependency_idle_ns == 0
    # Back from a kernel's begin: 9 since its launch, the host since 91, the call since the copy was over at 90, the
    # copy, which waited for the kernel: 5 since its end at 80. The last step lacks what follows: it is left out.
    found = path_us(figures)
    assert found == {
        "compute": 3 * 70,
        "copy": 3 * 5,
        "queued": 3 * 5,
        "sync": 3 * 1,
        "latency": 3 * 9,
        "launching": 3 * 1,
        "host": 3 * 9,
    }


@pytest.mark.parametrize(
    ("change", "step_us"),
    [
        ({}, 100),
        ({"compute.times": 0.5}, 65),  # everything after the kernel comes 35 earlier
        ({"compute.times": 2.0}, 170),
        ({"host.times": 0.0}, 70 + 5 + 5 + 1),  # the call still waits for the copy, the copy for the kernel
        ({"syncs.removed": True}, 70 + 5 + 5),  # the next kernel is there before the copy is over
        ({"copies.non_blocking": True}, 100),  # the copy is a download, whose value the script needs
    ],
)
def test_other_changes_are_predicted_of_steps_that_read_the_loss(
    tmp_path: Path, change: dict[str, float], step_us: float
) -> None:
    run = load_events(tmp_path, [event for number in range(4) for event in reading_the_loss(number=number)])
    program = program_of(run, measure(run))
    assert program.run() == list(program.recorded_ns)
    assert changed(program, change).step_ns() / US == pytest.approx(step_us)


@pytest.mark.parametrize(
    ("name", "kind", "returns", "held"),
    [
        ("cudaMemcpyAsync", LOSS, 91, True),
        ("cudaMemcpyAsync", "DtoH (Device -> Pinned)", 91, False),
        ("cudaMemcpyAsync", "HtoD (Pageable -> Device)", 91, True),
        ("cudaMemcpyAsync", "HtoD (Pageable -> Device)", 6, False),  # small: staged at once, and it returns
        ("cudaMemcpy", LOSS, 91, True),
        ("cudaMemcpy", "DtoD (Device -> Device)", 6, False),  # between two places of one device it does not wait
        ("hipMemcpyWithStream", "CopyDeviceToHost", 91, True),
    ],
)
def test_which_copies_hold_the_host(tmp_path: Path, name: str, kind: str, returns: int, held: bool) -> None:
    def events() -> Iterator[Event]:
        for number in range(4):
            at, first = 100 * number, 10 * number
            copying = [call(name, at + 3, at + returns, first + 1), copy(kind, at + 85, at + 90, first + 1)]
            yield from reading_the_loss(copying, number)

    figures = measure_events(tmp_path, list(events()))
    assert (figures.account.sync_idle_ns > 0) is held
    assert (figures.path.sync_ns > 0) is held
    (found,) = figures.copies
    assert (found.blocking_calls > 0) is held


def test_a_synchronous_copy_whose_work_was_not_recorded_holds_the_host(tmp_path: Path) -> None:
    copying = [call("cudaMemcpy", 3, 91)]
    events = [*reading_the_loss(copying), *(event for number in (1, 2, 3) for event in reading_the_loss(number=number))]
    first = measure_events(tmp_path, events).ranks[0].devices[0].steps[0].account
    assert first.sync_idle_ns == (11 + 1 + 1) * US  # from 80 to 91, the operator until 92, and the next launch


def queued(
    kernel_us: float, launches: int, *, ahead: bool = False, depth: int = 1021, freed_us: float = 5.0
) -> tuple[list[Event], list[float]]:
    """Four steps of launches, simulated: the events, and when each step's first kernel begins.

    A launch takes 2 us, 1 after the last; with `depth` outstanding it returns `freed_us` after a place is free. With
    `ahead` the first kernel of a step runs on a stream of its own.
    """
    events: list[Event] = []
    host, free, begun, firsts = 0.0, 0.0, [], []
    for number in range(launches * 4):
        host += 1
        called, full = host, number - depth
        host += 2
        if full >= 0 and begun[full] > called:
            host = max(host, begun[full] + freed_us)
        first = number % launches == 0
        beside = first and ahead
        begun.append(called + 8 if beside else max(called + 8, free))
        free = free if beside else begun[-1] + kernel_us
        if first:
            firsts.append(begun[-1])
            events.append(step(number // launches, called - 0.5, called + 1))
        events += [launch(number, called, host)]
        events += [kernel("k", begun[-1], begun[-1] + kernel_us, number, stream=9 if beside else 7)]
    marks = [event for event in events if event["name"].startswith("Prof")]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        mark["dur"] = (host if following is None else following["ts"]) - mark["ts"]
    return events, firsts


@pytest.fixture(scope="module")
def with_a_full_queue(tmp_path_factory: pytest.TempPathFactory) -> Program:
    run = load_events(tmp_path_factory.mktemp("queue"), queued(20, 1500)[0])
    program = program_of(run, measure(run))
    assert program.run() == list(program.recorded_ns)
    return program


@pytest.mark.long
@pytest.mark.parametrize("times", [0.1, 0.5, 2.0])
def test_a_full_queue_is_the_devices_limit(with_a_full_queue: Program, times: float) -> None:
    """Kernels of 20 us, launched every 3 us: 1,500 launches a step fill the queue in the first.

    What the replay says of kernels that take `times` as long is what the simulation says of such kernels.
    """
    _, firsts = queued(20 * times, 1500)
    replayed = changed(with_a_full_queue, {"compute.times": times}).step_ns() / US
    assert replayed == pytest.approx((firsts[-1] - firsts[0]) / 3, rel=0.01)


@pytest.mark.parametrize("freed_us", [0.0, 5.0])
def test_a_queue_that_holds_fewer_is_found_as_well(tmp_path: Path, freed_us: float) -> None:
    """200 launches, whether a call returns with the begin that it waits for or after it."""
    run = load_events(tmp_path, queued(20, 300, depth=200, freed_us=freed_us)[0])
    program = program_of(run, measure(run))
    assert program.run() == list(program.recorded_ns)
    _, firsts = queued(20 * 0.5, 300, depth=200, freed_us=freed_us)
    replayed = changed(program, {"compute.times": 0.5}).step_ns() / US
    assert replayed == pytest.approx((firsts[-1] - firsts[0]) / 3, rel=0.02)


def on_two_streams(times: float, *, depth: int, shared: bool) -> tuple[list[Event], list[float]]:
    """Four steps of 300 launches, simulated: the events, and when each step's first kernel begins.

    Kernels of 20 us, and in the middle of a step nine of 500 us on another stream, which stay queued for
    4.5 ms; `times` as long. Each stream takes `depth` launches that have not begun, or both together.
    """
    events: list[Event] = []
    host, firsts = 0.0, []
    free, begun = {7: 0.0, 9: 0.0}, {7: list[float](), 9: list[float]()}
    for number in range(4 * 300):
        place = number % 300
        stream = 9 if 110 <= place < 119 else 7
        host += 1
        called, queue = host, sorted(begun[7] + begun[9]) if shared else begun[stream]
        host += 2
        if len(queue) >= depth and queue[len(queue) - depth] > called:
            host = max(host, queue[len(queue) - depth] + 5)
        begun[stream].append(max(called + 8, free[stream]))
        free[stream] = begun[stream][-1] + times * (500 if stream == 9 else 20)
        if not place:
            firsts.append(begun[7][-1])
            events.append(step(number // 300, called - 0.5, called + 1))
        events += [launch(number, called, host), kernel("k", begun[stream][-1], free[stream], number, stream)]
    marks = [event for event in events if event["name"].startswith("Prof")]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        mark["dur"] = (host if following is None else following["ts"]) - mark["ts"]
    return events, firsts


@pytest.mark.parametrize("times", [0.3, 2.0])
@pytest.mark.parametrize("shared", [False, True], ids=["each its own", "shared"])
def test_streams_have_queues_of_their_own_or_share_one_as_calls_show(
    tmp_path: Path, shared: bool, times: float
) -> None:
    run = load_events(tmp_path, on_two_streams(1.0, depth=100, shared=shared)[0])
    blocked = light_views(run)[0].host.blocked
    assert len(blocked.full) > 500
    assert blocked.of_streams is not shared
    program = program_of(run, measure(run))
    assert program.run() == list(program.recorded_ns)
    assert set(program.queues.values()) == (set() if shared else {1})
    _, firsts = on_two_streams(times, depth=100, shared=shared)
    replayed = changed(program, {"compute.times": times}).step_ns() / US
    assert replayed == pytest.approx((firsts[-1] - firsts[0]) / 3, rel=0.02)


@pytest.mark.long
def test_a_call_that_finds_the_queue_full_is_no_work_of_the_host(tmp_path: Path) -> None:
    """The first kernel of each step runs on a stream that is free, so that the path comes to the call that launched it.

    The host came to that call only when the queue let it: the path goes on to the device, not to launching.
    """
    figures = measure_events(tmp_path, queued(20, 1500, ahead=True)[0])
    path = figures.path
    assert path.launching_ns + path.host_ns < 0.02 * path.path_ns
    assert path.compute_ns > 0.9 * path.path_ns
    assert figures.account.idle_ns == 0


def test_a_public_step_that_the_gpu_bounds_scales_with_its_kernels(real_traces: Path) -> None:
    (path,) = (real_traces / "hta_training").glob("e8fe4d1*")
    program = program_of(reading.loaded(path), reading.measured(path))
    for times, step_ms in ((0.3, 31), (0.5, 49), (0.7, 68), (1.0, 96)):
        assert changed(program, {"compute.times": times}).step_ns() / 1e6 == pytest.approx(step_ms, rel=0.04), times


def test_a_public_step_that_sits_in_one_copy(findings: Path) -> None:
    """139 to 147 of 216 ms in one `cudaMemcpyAsync` are on no path of the host, and no time of launching."""
    figures = reading.measured(findings / "traces" / "dlrm16_memcpy_wait_as_launching.json.gz")
    path = figures.path
    assert (path.launching_ns + path.host_ns) / path.path_ns < 0.1
    assert figures.account.share("launch_idle_ns") < 0.02
