"""Kernels are slower beside transfers, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dptune.whatif.cpu.wire import Link
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.contention import contended, with_contention, works
from dptune.whatif.gpu.graph import Edge, Kind, Message, Stretch
from dptune.whatif.gpu.program import Program

STEPS = 25


def beside_every_second() -> Program:
    """Steps of two kernels: one of 100 alone, then one of 125 beside a transfer of 125. The work is the same."""
    edges: list[list[Edge]] = [[]]
    recorded = [0]
    borders = [0]
    messages: list[Message] = []

    def add(*waits: Edge) -> int:
        edges.append(list(waits))
        recorded.append(round(max(recorded[edge.item] + edge.lag_ns for edge in waits)))
        return len(edges) - 1

    for _ in range(STEPS):
        alone = add(Edge(borders[-1], 100.0, Kind.COMPUTE))
        messages.append(Message("all_reduce", 125, "float"))
        kernel = add(Edge(alone, 125.0, Kind.COMPUTE))
        sent = add(Edge(alone, 125.0, Kind.EXCHANGE, len(messages) - 1))
        borders.append(add(Edge(kernel, 0.0, Kind.ORDER), Edge(sent, 0.0, Kind.ORDER)))
    steps = [Stretch(0, number, borders[number], borders[number + 1]) for number in range(STEPS)]
    return Program(recorded, edges, messages, steps, Link(0.0, 1.0), 2, ranks=[0] * len(edges))


def same_work(made: Program) -> dict[int, int]:
    return dict.fromkeys(made.places((Kind.COMPUTE,)), 0)


def test_how_much_slower_is_seen_where_the_same_work_ran_both_ways() -> None:
    made = beside_every_second()
    found = with_contention(made, same_work(made))
    assert found.beside_times == pytest.approx(1.25)
    assert set(found.beside.values()) == {1.0}
    assert len(found.beside) == STEPS
    other_work = {place: at % 2 for at, place in enumerate(made.places((Kind.COMPUTE,)))}
    assert with_contention(made, other_work).beside_times == 1.0
    few = dict.fromkeys([*same_work(made)][:30], 0)
    assert with_contention(made, few).beside_times == 1.0


def test_kernels_are_as_fast_as_alone_beside_no_transfer() -> None:
    """A link twice as fast: 62.5 of the transfer, in which the kernel does 50; the other 50 of its work follow."""
    found = beside_every_second()
    found = with_contention(found, same_work(found))
    assert contended(found) is found
    faster = changed(found, {"link.gb_per_s": 2.0})
    assert faster.step_ns() == 225
    assert contended(faster).step_ns() == pytest.approx(100 + 62.5 + 50, abs=2)
    no_transfer = changed(found, {"link.gb_per_s": 1e9})
    assert contended(no_transfer).step_ns() == pytest.approx(200, abs=1)


def test_kernels_that_come_beside_a_transfer_are_slower() -> None:
    """A link three times as slow: the transfer of 375 is longer than the kernel; nothing else is beside it."""
    found = beside_every_second()
    found = with_contention(found, same_work(found))
    slower = contended(changed(found, {"link.gb_per_s": 1 / 3}))
    assert slower.step_ns() == pytest.approx(475)
    half_beside = replace(found, beside=dict.fromkeys(found.beside, 0.5))  # as if the recording had shown that
    assert contended(changed(half_beside, {"link.gb_per_s": 1 / 3})).busy_ns() == pytest.approx(
        100 + 125 * 1.25 / 1.125, rel=0.01
    )


def test_the_same_work_is_a_kernel_between_the_same_kernels() -> None:
    names = np.array([1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 2, 9], dtype=np.int64)
    found = works(names).tolist()
    assert found[3] == found[6]
    assert found[4] == found[7]
    assert found[1] != found[4]  # nothing ran two before it
    assert found[13] not in found[:13]
