"""Changes that only lengthen, or only shorten, what they change."""

from dataclasses import replace

import pytest

from dptune.knobs import Value
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.effects import effect
from dptune.whatif.gpu.graph import Edge, Kind, Stretch
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.uncertainty import one_way

HOST_NS, STEPS = 100.0, 6


def host_bound(first_ns: float) -> Program:
    """Each step launches one kernel, 100 ns after the last: the first kernel takes `first_ns`, the others 10.

    A first kernel of more than 100 ns delays the begin of the second step, the first that counts, and not its end.
    """
    edges: list[list[Edge]] = [[]]
    call = end = 0
    begins = []
    for number in range(STEPS):
        call, edges = len(edges), [*edges, [Edge(call, HOST_NS, Kind.HOST)]]
        begins.append(len(edges))
        edges.append([Edge(call, 0.0, Kind.LAUNCH), Edge(end, 0.0, Kind.ORDER)])
        end = len(edges)
        edges.append([Edge(begins[-1], 10.0 if number else first_ns, Kind.COMPUTE)])
    steps = [Stretch(0, number, begins[number], begins[number + 1]) for number in range(STEPS - 1)]
    made = Program([0] * len(edges), edges, [], steps, Link(0.0, 1.0), 1, 8.0, ranks=[0] * len(edges))
    return replace(made, recorded_ns=[round(at) for at in made.run()])


@pytest.mark.parametrize(
    ("first_ns", "changes", "step_ns", "ratio"),
    [
        (80.0, {"compute.times": 2.0}, 76, 1.0),  # 40 and 3 x 100; 40 counts twice, for the first step
        (160.0, {"compute.times": 0.5}, 100, 1.0),  # it was 88
        (80.0, {"compute.times": 10.0}, 100, 1.0),  # kernels of 100, all 700 late
        (80.0, {"host.times": 2.0}, 200, 2.0),
        (160.0, {"host.times": 0.5}, 20, 20 / 88),
        (80.0, {"compute.times": 2.0, "host.times": 0.5}, 22, 22 / 100),  # in both: a step may become either
    ],
)
def test_a_change_in_one_direction(first_ns: float, changes: dict[str, Value], step_ns: float, ratio: float) -> None:
    made = host_bound(first_ns)
    assert changed(made, changes).step_ns() == pytest.approx(step_ns)
    assert effect(made, changes, made.step_ns())[1] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("changes", "way"),
    [
        ({"compute.times": 2.0}, 1),
        ({"host.times": 0.5}, -1),
        ({"compute.times": 2.0, "host.times": 0.5}, 0),
        ({"compute.times": 1.0}, 0),
    ],
)
def test_the_way_of_a_change(changes: dict[str, Value], way: int) -> None:
    made = host_bound(80.0)
    assert effect(made, changes, made.step_ns())[2] == way


@pytest.mark.parametrize(
    ("way", "ends", "left"),
    [
        (0, (80, 130), (80, 130)),
        (1, (80, 130), (98.5, 130)),
        (-1, (80, 130), (80, 101.5)),
        (1, (80, 90), (90, 90)),
        (-1, (110, 130), (110, 110)),
    ],
)
def test_an_interval_has_no_steps_that_the_way_of_a_change_excludes(
    way: int, ends: tuple[float, float], left: tuple[float, float]
) -> None:
    """Of a measured step of 100, which any model may be off by 1.5 %."""
    assert one_way(way, *ends, 100.0) == pytest.approx(left)
