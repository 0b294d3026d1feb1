"""Ranks that take turns being late, and one rank whose loader is slow, by hand."""

from __future__ import annotations

import pytest

from dptune.knobs import Value
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.program import Program

from ..measure.handmade import US, Event, all_reduce, annotation, kernel, launch, load_events, step  # noqa: TID252
from .test_recorded_waits import program

RANKS, STEPS = 3, 10  # the first does not count


def late_in_turn(rank: int) -> list[Event]:
    """Steps of 160 us: a rank's host needs 60 us more before its kernel in every third step; all wait for it.

    Else it launches 2 us into the step. The kernel takes 50, the all-reduce of all 30.
    """
    events = []
    for number in range(STEPS + 1):
        at, late = 160.0 * number, 60.0 * (number % RANKS == rank)
        first = 2 * number
        events += [
            step(number, at, at + 160),
            launch(first, at + late + 2, at + late + 3),
            launch(first + 1, at + late + 4, at + late + 5),
            kernel("a", at + late + 10, at + late + 60, first),
            all_reduce(at + late + 60, at + 150, first + 1, 1000, "0", RANKS),
            annotation("wait", at + 150, at + 151),
            {**launch(10_000 + number, at + late + 6, at + 150), "name": "cudaDeviceSynchronize"},
        ]
    return events


@pytest.fixture(scope="module")
def rotating(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return program(load_events(tmp_path_factory.mktemp("rotating"), *map(late_in_turn, range(RANKS))))


@pytest.mark.parametrize(
    ("change", "step_us"),
    [
        ({"straggler.removed": True}, 140),  # of one rank only: in two of three steps another is late
        ({"straggler.balanced": True}, 120),  # each rank needs 20 us more in each step
    ],
)
def test_a_rotating_straggler(rotating: Program, change: dict[str, Value], step_us: float) -> None:
    assert rotating.run() == [float(at) for at in rotating.recorded_ns]
    assert rotating.step_ns() == 160 * US
    assert changed(rotating, change).step_ns() / US == pytest.approx(step_us, rel=0.02)
