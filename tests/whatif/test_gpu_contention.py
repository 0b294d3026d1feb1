"""Kernels and transfers slow each other, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dptune.measured import LinkFigures, Measured
from dptune.testing import measured_run
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.contention import contended, with_contention, works
from dptune.whatif.gpu.editing import with_new
from dptune.whatif.gpu.graph import Edge, Kind, Message, Stretch
from dptune.whatif.gpu.links import linked
from dptune.whatif.gpu.overlap import computing_shares
from dptune.whatif.gpu.precision import half_precision
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
        sent = add(Edge(alone, 125.0, Kind.COLLECTIVE, len(messages) - 1))
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


def transfers_alone_and_beside(rank_that_computes: int = 0, unit_ns: float = 1.0) -> Program:
    """Steps of two ranks with two transfers of 100 bytes: 100 alone, then 120 beside a kernel of one rank of 120."""
    edges: list[list[Edge]] = [[]]
    recorded, ranks, borders, messages = [0], [0], [0], list[Message]()

    def add(rank: int, *waits: Edge) -> int:
        edges.append(list(waits))
        ranks.append(rank)
        recorded.append(round(max(recorded[edge.item] + edge.lag_ns for edge in waits)))
        return len(edges) - 1

    def sent(after: list[int], took_ns: float) -> list[int]:
        messages.append(Message("all_reduce", 100, "float"))
        begins = [add(rank, *(Edge(item, 0.0, Kind.ORDER) for item in after)) for rank in (0, 1)]
        number = len(messages) - 1
        return [add(rank, *(Edge(begin, took_ns, Kind.COLLECTIVE, number) for begin in begins)) for rank in (0, 1)]

    for _ in range(STEPS):
        alone = sent([borders[-1]], 100.0 * unit_ns)
        kernel = add(rank_that_computes, *(Edge(item, 120.0 * unit_ns, Kind.COMPUTE) for item in alone))
        over = sent(alone, 120.0 * unit_ns)
        borders.append(add(0, Edge(kernel, 0.0, Kind.ORDER), *(Edge(item, 0.0, Kind.ORDER) for item in over)))
    steps = [Stretch(0, number, borders[number], borders[number + 1]) for number in range(STEPS)]
    return Program(recorded, edges, messages, steps, None, 2, ranks=ranks)


def measured_with(*links: LinkFigures) -> Measured:
    return measured_run().model_copy(update={"links": list(links)})


def fit_of_trace(algbw: float, basis: str = "trace") -> LinkFigures:
    known = {"alpha_us": 0.0, "algbw_gb_per_s": algbw, "scope": "unknown", "basis": basis}
    return LinkFigures.only("no", kind="all_reduce", ranks=[0, 1], sizes=[], calls=3, **known)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_transfer_is_slower_while_any_of_its_ranks_computes(rank: int) -> None:
    made = transfers_alone_and_beside(rank)
    assert sorted(computing_shares(made).values()) == [0.0] * 2 * STEPS + [1.0] * 2 * STEPS
    found = linked(made, measured_with())
    assert found.transfer_times == pytest.approx(1.2)


def test_transfers_of_groups_that_do_not_use_the_link_show_it_too() -> None:
    """The link is that of ranks 0 and 1, and the transfers are of ranks 0 and 2."""
    made = transfers_alone_and_beside()
    messages = [replace(message, ranks=2, offsets=(0, 2)) for message in made.messages]
    found = linked(replace(made, messages=messages), measured_with(fit_of_trace(1.0)))
    assert not any(map(found.uses_link, found.messages))
    assert found.transfer_times == pytest.approx(1.2)


def test_the_link_is_what_transfers_take_that_overlap_no_compute() -> None:
    """100 bytes in 100: with the latency assumed, or where the fit over all transfers says 110."""
    made = transfers_alone_and_beside()
    assumed, fitted = linked(made, measured_with()).link, linked(made, measured_with(fit_of_trace(100 / 110))).link
    assert assumed is not None
    assert fitted is not None
    assert assumed.alone_ns(100) == pytest.approx(100)
    assert fitted.alone_ns(100) == pytest.approx(100)
    swept = linked(made, measured_with(fit_of_trace(100 / 80, "sweep"))).link  # `dptune links` measured it alone
    assert swept is not None
    assert swept.alone_ns(100) == pytest.approx(80)


def test_a_fit_of_transfers_that_all_overlap_compute_is_brought_to_the_link_alone() -> None:
    """Each takes 1.14 times as long as alone, assumed, or 1 to 1.34 times."""
    every = transfers_alone_and_beside()
    beside = [place for place, share in computing_shares(every).items() if share]
    edges = [
        [edge for edge in each if edge.kind != Kind.COLLECTIVE or place in beside]
        for place, each in enumerate(every.edges)
    ]
    found = linked(replace(every, edges=edges), measured_with(fit_of_trace(100 / 120)))
    assert found.link is not None
    assert found.link.alone_ns(100) == pytest.approx(120 / 1.14)
    assert {round(link.alone_ns(100), 6) for link in found.other_links} == {120.0, round(120 / 1.34, 6)}
    assert found.transfer_times == 1.0  # none is alone


def test_what_overlapped_compute_adds_to_a_transfer_does_not_grow_with_it() -> None:
    """A link half as fast: 200 alone; beside the kernel of 120 a transfer does 100 of its 200, the rest without."""
    made = linked(transfers_alone_and_beside(), measured_with(fit_of_trace(100 / 110)))
    assert contended(made).step_ns() == made.step_ns() == 220
    slower = contended(changed(made, {"link.gb_per_s": 0.5}))
    assert slower.step_ns() == pytest.approx(200 + 220, rel=0.005)
    assert contended(changed(made, {"compute.times": 0.0})).step_ns() == pytest.approx(200)
    assert contended(changed(made, {"compute.times": 2.0})).step_ns() == pytest.approx(100 + 240)


def test_shorter_kernels_slow_transfers_less_as_measured_and_not_as_assumed() -> None:
    """Beside a kernel of 60 us instead of 120 a transfer does 50 of its 100, and the rest without."""
    made = transfers_alone_and_beside(unit_ns=1000.0)
    edges = [
        [Edge(edge.item, edge.lag_ns, Kind.FP32) if edge.kind == Kind.COMPUTE else edge for edge in each]
        for each in made.edges
    ]
    made = replace(made, edges=edges, peaks={"fp32": 1.0, "bf16": 2.0})
    measured = linked(made, measured_with())
    for side in Side:
        halved = half_precision(measured, side, "bf16")
        assert [each for each in halved.edges if each and each[0].kind == Kind.COLLECTIVE] == [
            each for each in made.edges if each and each[0].kind == Kind.COLLECTIVE
        ]
    kernel_ns = 60e3
    shorter = with_new(
        measured, {place: [edges[place][0].lasting(kernel_ns)] * 2 for place in measured.places((Kind.FP32,))}
    )
    assert contended(shorter).step_ns() == pytest.approx(1000 * (100 + 60 + 50), rel=0.01)
    assumed = half_precision(made, Side.MIDDLE, "bf16")
    assert sum(edge.lag_ns for each in assumed.edges for edge in each if edge.kind == Kind.COLLECTIVE) < sum(
        edge.lag_ns for each in made.edges for edge in each if edge.kind == Kind.COLLECTIVE
    )
