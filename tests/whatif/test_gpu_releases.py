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
