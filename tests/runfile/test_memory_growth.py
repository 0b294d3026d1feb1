"""Whether memory grows from step to step, by made counts and readings."""

from __future__ import annotations

import pytest

from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.kept_tensors import KeptFacts, LookFacts
from dptune.runfile.memory_growth import memory_growth
from dptune.runfile.window import Window

MIB = 2**20


def rank(looks=(), readings=(), kind="cpu"):
    """`looks` are (step, tensors, with a graph, MiB), `readings` MiB after each untraced step."""
    window = Window("untraced", 6, [10**7] * 20, memory_bytes=[int(one * MIB) for one in readings])
    kept = KeptFacts([LookFacts(step, many, graphs, int(mib * MIB)) for step, many, graphs, mib in looks])
    return Facts(rank=0, windows=[window], device=DeviceFacts(kind), kept=kept if looks else None)


def grown(*args, **more):
    return [(one.basis, one.bytes_per_step / MIB, one.tensors) for one in memory_growth([rank(*args, **more)])]


def test_tensors_that_each_step_leaves():
    """60 tensors and 40 MiB in 20 steps, 16 and 11 MiB in 5: 76 and 51 MiB in 25."""
    looks = [(5, 80, 10, 130), (25, 140, 50, 170), (30, 156, 60, 181)]
    ((basis, mib, tensors),) = grown(looks)
    assert (basis, mib, tensors) == ("tensors", pytest.approx(51 / 25), pytest.approx(76 / 25))


@pytest.mark.parametrize(
    "looks",
    [
        [(5, 80, 0, 130), (25, 80, 0, 130), (30, 80, 0, 130)],
        [(5, 80, 0, 130), (25, 100, 0, 170), (30, 100, 0, 170)],  # a cache that is full by then
        [(5, 80, 0, 130), (25, 100, 0, 170), (30, 60, 0, 120)],  # let go at the end of an epoch
        [(5, 80, 0, 130), (6, 100, 0, 170)],  # one step
        [(5, 80, 0, 130)],
        [],
    ],
)
def test_what_does_not_grow_throughout(looks):
    assert grown(looks) == []


NOISE = [0.0, 0, 1.88, 1.88, 1.88, 1.88, 1.88, 1.88, 5.07, 5.07, 8.07, 8.07, 8.07, 10.3, 11.4, 12.9, 12.9, 14.8, 14.8]


def test_resident_memory_grows_by_chance():
    """Readings of a healthy run on a CPU."""
    assert grown([(5, 80, 10, 130), (25, 80, 10, 130), (30, 80, 10, 130)], NOISE) == []


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_losses_that_were_passed_backward(kind):
    """Each step leaves one with its graph, and no bytes that can be told from chance."""
    looks = [(5, 80, 0, 130), (25, 100, 20, 130), (30, 105, 25, 130)]
    (growth,) = memory_growth([rank(looks, NOISE if kind == "cpu" else [100] * 20, kind=kind)])
    assert (growth.basis, growth.bytes_per_step, growth.with_graph) == ("tensors", 0.0, 1.0)
    assert growth.graphs_each_step == 1


@pytest.mark.parametrize(("more", "each_step"), [(4, 0), (5, 1), (9, 1), (10, 2), (100, 2)])
def test_each_step_leaves_what_it_leaves_in_each_part(more, each_step):
    """40 in 20 steps, then so many in 5."""
    growths = memory_growth([rank([(5, 80, 0, 130), (25, 120, 40, 130), (30, 120 + more, 40 + more, 130)])])
    assert [growth.graphs_each_step for growth in growths] == [each_step][: bool(each_step)]


@pytest.mark.parametrize("counts", [(8, 16, 16), (10, 10, 20), (0, 20, 24)])
def test_graphs_that_become_more_in_one_part_alone(counts):
    """As where an episode ends in between."""
    looks = [(step, 80 + count, count, 130) for step, count in zip((5, 25, 30), counts, strict=True)]
    assert grown(looks) == []


def test_losses_with_their_graphs_are_seen_by_resident_memory():
    """16 MiB a step: the first and the last 3 of 10 readings lie 7 steps apart."""
    looks = [(5, 80, 0, 130), (25, 100, 20, 130), (30, 105, 25, 130)]
    assert grown(looks, [100 + 16 * at for at in range(20)]) == [("resident", 16.0, 1.0)]


def test_a_gpu_says_what_is_allocated():
    readings = [100 + 3 * at for at in range(20)]
    assert grown([], readings, kind="cuda") == [("allocated", 3.0, 0.0)]
    assert grown([], [100 + at % 2 for at in range(20)], kind="cuda") == []
    assert grown([], [*range(100, 110), *[110] * 10], kind="cuda") == []
