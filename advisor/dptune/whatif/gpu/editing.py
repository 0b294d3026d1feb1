"""Edges of a program made longer or shorter, or taken away; where all stay as they are, the program does."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from operator import is_

import numpy as np

from dptune.measure.intervals import Ints
from dptune.whatif.gpu.columns import Floats
from dptune.whatif.gpu.graph import OF_HOST, Edge, Kind
from dptune.whatif.gpu.parts import Part
from dptune.whatif.gpu.program import Program


def with_edges(program: Program, kinds: Collection[Kind], of: Callable[[int, Edge], Edge | None]) -> Program:
    """The program with each edge of these kinds replaced by another of its kind, or taken away.

    `of` gets the place of the item that waits, and the edge.
    """
    wanted, new = frozenset(kinds), {}
    for place in program.places(wanted):
        each = program.edges[place]
        others = [other for edge in each if (other := of(place, edge) if edge.kind in wanted else edge)]
        if len(others) != len(each) or not all(map(is_, others, each)):
            new[place] = others
    return with_new(program, new)


def with_new(program: Program, new: Mapping[int, Sequence[Edge]]) -> Program:
    """The program with other edges of some items, of kinds that these have; as it is where there are none."""
    if not new:
        return program
    edges = [*program.edges]
    for place, others in new.items():
        edges[place] = others
    return program.edited(edges)


def times(
    program: Program, kinds: Collection[Kind], factor: float, chosen: Callable[[int], bool] | None = None
) -> Program:
    """Edges of these kinds so many times as long; `chosen`: only those of these items."""
    if factor == 1:
        return program
    rows = _rows(program, kinds, chosen)
    return retimed(program, rows, program.columns.lag_ns[rows] * factor)


def lasting(
    program: Program, kinds: Collection[Kind], of: Callable[[float], float], chosen: Callable[[int], bool] | None = None
) -> Program:
    """Edges of these kinds as long as `of` says of their time, ns, where they take any."""
    rows = _rows(program, kinds, chosen)
    return retimed(program, rows, np.array([of(ns) for ns in program.columns.lag_ns[rows].tolist()], dtype=np.float64))


def _rows(program: Program, kinds: Collection[Kind], chosen: Callable[[int], bool] | None) -> Ints:
    """The edges of these kinds, of items that are `chosen`, that take any time."""
    columns = program.columns
    rows = np.flatnonzero(columns.of_kinds(kinds) & (columns.lag_ns != 0))
    return rows if chosen is None else rows[[chosen(place) for place in columns.place[rows].tolist()]]


def retimed(program: Program, rows: Ints, times_ns: Floats) -> Program:
    """The program whose edges of these rows take so long."""
    columns = program.columns
    differ = times_ns != columns.lag_ns[rows]
    if not differ.any():
        return program
    rows, times_ns = rows[differ], times_ns[differ]
    lag_ns = columns.lag_ns.copy()
    lag_ns[rows] = times_ns
    places, edges = columns.place[rows], [*program.edges]
    numbers = rows - np.searchsorted(columns.place, places)
    before = -1
    for place, number, ns in zip(places.tolist(), numbers.tolist(), times_ns.tolist(), strict=True):
        others = edges[place] if place == before else [*edges[place]]
        others[number] = others[number].lasting(ns)
        edges[place], before = others, place
    return program.retimed(edges, replace(columns, lag_ns=lag_ns))


def without(program: Program, gone: Collection[int]) -> Program:
    """The program in which these items take no time: what waits for them still waits for what they wait for."""
    edges = program.edges
    return with_new(
        program,
        {
            place: [edge.lasting(0.0) for edge in edges[place]]
            for place in gone
            if any(edge.lag_ns for edge in edges[place])
        },
    )


def without_part(program: Program, gone: Collection[int], part: Part) -> Program:
    """The program without a part: its operations take no time, and the host spends none on it.

    What the host does between the calls of the part stays, unless the trace has no ranges of the part.
    """
    spent_ns = program.spent_ns.get(part, {})
    operations = [place for place in gone if not _is_of_host(program.edges[place])] if spent_ns else gone
    new = {place: [edge.lasting(0.0) for edge in program.edges[place]] for place in operations}
    new.update(spared(program.edges, spent_ns))
    return with_new(program, {place: others for place, others in new.items() if others != program.edges[place]})


def spared(edges: Sequence[Sequence[Edge]], spent_ns: Mapping[int, float]) -> dict[int, list[Edge]]:
    """The edges of host items, by place, without this much host time."""
    return {
        place: [
            edge.lasting(max(0.0, edge.lag_ns - spent)) if edge.kind in (Kind.HOST, Kind.UPDATING) else edge
            for edge in edges[place]
        ]
        for place, spent in spent_ns.items()
    }


def _is_of_host(edges: Sequence[Edge]) -> bool:
    return any(edge.kind in OF_HOST for edge in edges)


def with_room(program: Program) -> Program:
    """The program whose launch queue is never full: far fewer operations are launched than were recorded."""
    return with_edges(program, (Kind.QUEUE,), lambda _place, _edge: None)


def requeued(program: Program, gone: Collection[int]) -> Program:
    """The program whose launch queues have as much room without these items, which are launched no more.

    A call that waited for room waits for what is launched as many operations before it as was recorded.
    """
    first: dict[int, int] = {}  # by call the begin of what it launches
    for place in program.places((Kind.LAUNCH,)):
        for edge in program.edges[place]:
            if edge.kind == Kind.LAUNCH:
                first.setdefault(edge.item, place)
    queues: dict[tuple[int, int], _Queue] = defaultdict(_Queue)
    for call in sorted(first):
        begin = first[call]
        queues[program.ranks[call], program.queues.get(begin, 0)].launched(call, begin, gone=call in gone)

    def of(place: int, edge: Edge) -> Edge | None:
        began = queues[program.ranks[place], program.queues.get(edge.item, 0)].room(place, edge.item)
        if began == edge.item:
            return edge
        return None if began is None or began >= place else Edge(began, edge.lag_ns, edge.kind)

    return with_edges(program, (Kind.QUEUE,), of)


class _Queue:
    """What is launched into a queue: the places of calls and of begins, in order, and those that still are."""

    def __init__(self) -> None:
        self._calls: list[int] = []
        self._number: dict[int, int] = {}
        self._kept: list[int] = []
        self._kept_before = [0]

    def launched(self, call: int, begin: int, *, gone: bool) -> None:
        self._number[begin] = len(self._calls)
        self._calls.append(call)
        if not gone:
            self._kept.append(begin)
        self._kept_before.append(len(self._kept))

    def room(self, place: int, begin: int) -> int | None:
        """The begin that a call waits for that waited for another; None where the queue is not as full any more."""
        number = self._number.get(begin)
        if number is None:  # before the first step
            return begin
        launched = bisect_left(self._calls, place)
        back = launched - number
        at = self._kept_before[launched] - back
        return self._kept[at] if at >= 0 else None
