"""Edges as columns, and what is computed of columns, beside plain computations over the edges themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.whatif.gpu.columns import Columns
from dptune.whatif.gpu.editing import lasting, times
from dptune.whatif.gpu.graph import COMPUTING, OF_HOST, Edge, Kind, Message, Stretch
from dptune.whatif.gpu.overlap import computing_shares, transferred
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.spans import held, joined

LAGS = st.integers(0, 40).map(float)
KINDS = st.sampled_from(Kind)
Edges = Sequence[Sequence[Edge]]


@st.composite
def edges_of_items(draw: st.DrawFn, kinds: st.SearchStrategy[Kind] = KINDS) -> list[list[Edge]]:
    """Of up to a dozen items, each of which waits for up to three earlier ones."""
    count = draw(st.integers(1, 12))
    found: list[list[Edge]] = [[]]
    for place in range(1, count):
        awaited = draw(st.lists(st.integers(0, place - 1), max_size=3))
        found.append([Edge(item, draw(LAGS), draw(kinds), draw(st.integers(-1, 1))) for item in awaited])
    return found


def program(edges: Edges, recorded_ns: Sequence[int] = (), ranks: Sequence[int] = (), **fields: object) -> Program:
    count = len(edges)
    made = Program(
        [*recorded_ns] or [10 * place for place in range(count)],
        edges,
        [Message("all_reduce", 8, "float32", 2)] * 2,
        [Stretch(0, 1, 0, count - 1)],
        None,
        2,
        ranks=[*ranks] or [0] * count,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def one_by_one(edges: Edges, recorded_ns: Sequence[int], fixed: frozenset[int]) -> list[float]:
    """When items come to pass: the last of what they wait for and the time of its edge; else as recorded."""
    found: list[float] = []
    for place, each in enumerate(edges):
        waits = bool(each) and place not in fixed
        found.append(max(found[edge.item] + edge.lag_ns for edge in each) if waits else float(recorded_ns[place]))
    return found


@given(edges_of_items())
def test_columns_are_those_edges(edges: list[list[Edge]]) -> None:
    columns = Columns.of(edges)
    assert [list(each) for each in columns.edges()] == edges
    assert columns.count == len(edges)
    flat = [(place, edge) for place, each in enumerate(edges) for edge in each]
    assert list(zip(columns.place.tolist(), columns.item.tolist(), strict=True)) == [
        (at, each.item) for at, each in flat
    ]


@given(edges_of_items(), st.sets(KINDS))
def test_places_are_of_items_with_such_an_edge(edges: list[list[Edge]], kinds: set[Kind]) -> None:
    wanted = [place for place, each in enumerate(edges) if any(edge.kind in kinds for edge in each)]
    assert Columns.of(edges).places(kinds).tolist() == wanted


@given(edges_of_items(), st.randoms(use_true_random=False))
def test_moved_columns_are_those_of_moved_edges(edges: list[list[Edge]], random) -> None:
    places = [*range(len(edges))]
    random.shuffle(places)
    moved: list[list[Edge]] = [[] for _ in edges]
    for item, each in enumerate(edges):
        moved[places[item]] = [Edge(places[edge.item], edge.lag_ns, edge.kind, edge.message) for edge in each]
    assert [list(each) for each in Columns.of(edges).moved(np.array(places)).edges()] == moved


@given(edges_of_items(), st.data())
def test_items_come_to_pass_after_the_last_that_they_wait_for(edges: list[list[Edge]], data: st.DataObject) -> None:
    recorded = sorted(data.draw(st.lists(st.integers(0, 200), min_size=len(edges), max_size=len(edges))))
    fixed = frozenset(data.draw(st.sets(st.integers(0, len(edges) - 1))))
    made = program(edges, recorded, fixed=fixed)
    assert made.run() == one_by_one(edges, recorded, fixed)


@given(edges_of_items(), st.sets(KINDS), st.sampled_from((0.0, 0.5, 1.0, 3.0)))
def test_edges_so_many_times_as_long(edges: list[list[Edge]], kinds: set[Kind], factor: float) -> None:
    """As edges of another program, and as times of the same edges."""
    wanted = [[each.lasting(each.lag_ns * factor) if each.kind in kinds else each for each in of] for of in edges]
    made = program(edges)
    other = times(made, kinds, factor)
    assert [list(each) for each in other.edges] == wanted
    assert other.run() == one_by_one(wanted, made.recorded_ns, frozenset())
    assert made.run(made.columns.scaled(kinds, factor)) == other.run()
    assert other.columns.lag_ns.tolist() == Columns.of(wanted).lag_ns.tolist()
    assert made.run() == one_by_one(edges, made.recorded_ns, frozenset())  # still itself


@given(edges_of_items(), st.sets(KINDS), st.sets(st.integers(0, 11)))
def test_only_chosen_items_last_longer(edges: list[list[Edge]], kinds: set[Kind], chosen: set[int]) -> None:
    def longer(place: int, edge: Edge) -> Edge:
        changes = edge.kind in kinds and edge.lag_ns and place in chosen
        return edge.lasting(edge.lag_ns + 7) if changes else edge

    found = lasting(program(edges), kinds, lambda ns: ns + 7, lambda place: place in chosen)
    assert [list(each) for each in found.edges] == [
        [longer(place, edge) for edge in each] for place, each in enumerate(edges)
    ]


def test_where_nothing_changes_the_program_is_the_same() -> None:
    made = program([[], [Edge(0, 5.0, Kind.COMPUTE)], [Edge(1, 0.0, Kind.ORDER)]])
    assert times(made, (Kind.COMPUTE,), 1.0) is made
    assert times(made, (Kind.COPY,), 2.0) is made
    assert times(made, (Kind.ORDER,), 2.0) is made


@given(edges_of_items(), st.integers(0, 11), st.integers(0, 11))
def test_the_hosts_work_between_two_calls(edges: list[list[Edge]], first: int, last: int) -> None:
    """Back from the last call by the first edge of the host of each item; unknown where an item has none."""
    first, last = first % len(edges), last % len(edges)
    worked: float | None = 0.0
    item = last
    while item > first and worked is not None:
        of_host = [edge for edge in edges[item] if edge.kind in OF_HOST]
        worked = worked + of_host[0].lag_ns if of_host else None
        item = of_host[0].item if of_host else item
    columns = Columns.of(edges)
    assert columns.host_between_ns(columns.lag_ns, [(first, last), None]) == [worked, None]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1), st.integers(0, 60), st.integers(0, 60))
def test_spans_beside_counting_every_nanosecond(spans: list[tuple[int, int]], first: int, last: int) -> None:
    first, last = min(first, last), max(first, last)
    begin, end = np.array([(start, start + length) for start, length in spans], dtype=np.float64).T
    inside = {ns for start, length in spans for ns in range(start, start + length)}
    assert held(*joined(begin, end), first, last) == len(inside & {*range(first, last)})


@given(st.data())
def test_shares_of_transfers_in_which_a_rank_computes(data: st.DataObject) -> None:
    """Two ranks with kernels and one collective of both: the part of its transfer in which either computes."""
    recorded, ranks, edges = [0], [0], list[list[Edge]]([[]])

    def item(at_ns: int, rank: int, *waits: Edge) -> int:
        recorded.append(at_ns)
        ranks.append(rank)
        edges.append([*waits])
        return len(edges) - 1

    spans = st.tuples(st.integers(0, 40), st.integers(1, 20))
    computing: set[int] = set()
    for rank in (0, 1):
        for start, length in data.draw(st.lists(spans, max_size=4)):
            begin = item(start, rank)
            item(start + length, rank, Edge(begin, float(length), data.draw(st.sampled_from(sorted(COMPUTING)))))
            computing |= {*range(start, start + length)}
    begun = [data.draw(st.integers(0, 30)) for _ in (0, 1)]
    took = data.draw(st.integers(1, 30))
    waits = [item(at_ns, rank) for rank, at_ns in enumerate(begun)]
    end = max(begun) + took
    ends = [item(end, rank, *(Edge(at, float(took), Kind.COLLECTIVE, 0) for at in waits)) for rank in (0, 1)]
    made = program(edges, recorded, ranks)
    share = len(computing & {*range(max(begun), end)}) / took
    assert computing_shares(made) == pytest.approx(dict.fromkeys(ends, share))
    places, starts_ns, ends_ns = transferred(made, recorded)
    assert (places.tolist(), starts_ns.tolist(), ends_ns.tolist()) == (ends, [max(begun)] * 2, [end] * 2)
