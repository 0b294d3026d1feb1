"""Calls that free memory of the device wait for it: what they then do is the host's, and the wait is not. By hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.knobs import Value
from dptune.measure import measure
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.recorded import program_of

from ..measure.handmade import Event, call, kernel, launch, load_events, step  # noqa: TID252 - tests are no package

STEP, KERNEL, FREEING = 120, 70, 15


def freeing(number: int, name: str = "cudaFree", waits: bool = True) -> list[Event]:
    """A step of 120 us: a kernel from 10 to 80, a call from 3 on that frees memory once that is over, until 95."""
    at, first = STEP * number, 10 * number
    begin = at + (3 if waits else 80)
    return [
        step(number, at, at + STEP),
        launch(first, at + 1, at + 2),
        kernel("a", at + 10, at + 10 + KERNEL, first),
        call(name, begin, at + 80 + FREEING),
    ]


@pytest.mark.parametrize(
    ("changes", "waits", "step_us"),
    [
        ({}, True, STEP),
        ({"compute.times": 0.5}, True, STEP - KERNEL / 2),
        ({"compute.times": 0.5}, False, STEP),  # the host is the limit: it has 78 us of its own before the call
        ({"host.times": 0.0}, True, KERNEL),
        ({"syncs.removed": True}, True, STEP),
    ],
)
@pytest.mark.parametrize("name", ["cudaFree", "hipFree"])
def test_a_call_that_frees_memory(
    tmp_path: Path, name: str, changes: dict[str, Value], waits: bool, step_us: float
) -> None:
    run = load_events(tmp_path, [event for number in range(5) for event in freeing(number, name, waits)])
    program = program_of(run, measure(run))
    releases = [edge for edges in program.edges for edge in edges if edge.kind == Kind.RELEASE]
    assert bool(releases) == waits
    assert changed(program, changes).step_ns() == pytest.approx(1000 * step_us, abs=2000)


def after_a_wait(number: int, other_stream: bool = True, later: int = 1) -> list[Event]:
    """A step of 400 us: two short kernels, then one until 380, after which memory is freed by no call that waits."""
    at, first = 400 * number, 10 * number
    stream = 20 if other_stream else 7
    return [
        step(number, at, at + 400),
        launch(first, at + 1, at + 2),
        launch(first + 1, at + 3, at + 4),
        launch(first + 2, at + 5, at + 6),
        kernel("a", at + 10, at + 15, first),
        kernel("b", at + 15, at + 20, first + 1),
        kernel("c", at + 30, at + 380, first + 2, stream),
        call("cudaFree", at + 380 + later, at + 390 + later),
    ]


@pytest.mark.parametrize(
    ("other_stream", "later", "waits"),
    [
        (True, 1, True),
        (True, 8, True),
        (False, 1, False),  # only streams that a block was not allocated for are waited for
    ],
)
def test_before_it_frees_memory_the_allocator_waits_for_other_streams(
    tmp_path: Path, other_stream: bool, later: int, waits: bool
) -> None:
    """From the last launch on, unseen by the trace. Where it waits, the step is shorter by what the kernel is."""
    run = load_events(tmp_path, [event for number in range(5) for event in after_a_wait(number, other_stream, later)])
    program = program_of(run, measure(run))
    assert program.step_ns() == pytest.approx(400e3, abs=2000)
    assert any(edge.kind == Kind.RELEASE for edges in program.edges for edge in edges) == waits
    halved = changed(program, {"compute.times": 0.5}).step_ns()
    assert halved == pytest.approx(400e3 - (175e3 if waits else 0.0), abs=15e3)


def test_a_call_before_the_first_operation_leaves_later_waits_as_they_are(tmp_path: Path) -> None:
    """Of a device whose clock is behind: kernels begin up to 3 us before their calls."""
    steps = [event for number in range(5) for event in after_a_wait(number)]
    steps = [{**event, "ts": event["ts"] - 12} if event["cat"] == "kernel" else event for event in steps]
    found = []
    for name, events in (("without", steps), ("with", [call("cudaFree", -20, -15), *steps])):
        (tmp_path / name).mkdir()
        run = load_events(tmp_path / name, events)
        program = program_of(run, measure(run))
        found.append(sum(edge.kind == Kind.RELEASE for edges in program.edges for edge in edges))
    assert found[0] == found[1] > 0
