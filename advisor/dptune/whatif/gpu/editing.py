"""Edges of a program made longer or shorter, or taken away; where all stay as they are, the program does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from operator import is_

from dptune.whatif.gpu.program import Edge, Kind, Program


def with_edges(program: Program, of: Callable[[int, Edge], Edge | None]) -> Program:
    """The program with each edge replaced, or taken away; `of` gets the place of the item that waits, and the edge."""
    edges = [[new for edge in each if (new := of(place, edge))] for place, each in enumerate(program.edges)]
    if all(map(_same, edges, program.edges)):
        return program
    return replace(program, edges=edges)


def _same(edges: Sequence[Edge], others: Sequence[Edge]) -> bool:
    return len(edges) == len(others) and all(map(is_, edges, others))


def times(
    program: Program, kinds: Collection[Kind], factor: float, chosen: Callable[[int], bool] | None = None
) -> Program:
    """Edges of these kinds so many times as long; `chosen`: only those of these items."""
    return program if factor == 1 else lasting(program, kinds, lambda lag_ns: lag_ns * factor, chosen)


def lasting(
    program: Program, kinds: Collection[Kind], of: Callable[[float], float], chosen: Callable[[int], bool] | None = None
) -> Program:
    """Edges of these kinds as long as `of` says of their time, ns."""
    wanted, changes = frozenset(kinds), False
    edges: list[Sequence[Edge]] = []
    for place, each in enumerate(program.edges):
        for edge in each:
            if edge.lag_ns and edge.kind in wanted and (chosen is None or chosen(place)):
                new = [other.lasting(of(other.lag_ns)) if other.kind in wanted else other for other in each]
                changes = changes or any(other.lag_ns != then.lag_ns for other, then in zip(new, each, strict=True))
                edges.append(new)
                break
        else:
            edges.append(each)
    return replace(program, edges=edges) if changes else program


def without(program: Program, gone: Callable[[int], bool]) -> Program:
    """The program in which these items take no time: what waits for them still waits for what they wait for."""
    changes = False
    edges: list[Sequence[Edge]] = []
    for place, each in enumerate(program.edges):
        if gone(place) and any(edge.lag_ns for edge in each):
            edges.append([edge.lasting(0.0) for edge in each])
            changes = True
        else:
            edges.append(each)
    return replace(program, edges=edges) if changes else program


def with_room(program: Program) -> Program:
    """The program whose launch queue is never full: far fewer operations are launched than were recorded."""
    return with_edges(program, lambda _, edge: None if edge.kind == Kind.QUEUE else edge)


def requeued(program: Program, gone: Callable[[int], bool]) -> Program:
    """The program whose launch queue has as much room without these items, which are launched no more.

    A call that waited for room waits for what is launched as many operations before it as was recorded.
    """
    first: dict[int, int] = {}  # by call the begin of what it launches
    for place, edges in enumerate(program.edges):
        for edge in edges:
            if edge.kind == Kind.LAUNCH:
                first.setdefault(edge.item, place)
    queues = {rank: _Queue() for rank in set(program.ranks)}
    for call in sorted(first):
        queues[program.ranks[call]].launched(call, first[call], gone=gone(call))

    def of(place: int, edge: Edge) -> Edge | None:
        began = queues[program.ranks[place]].room(place, edge.item)
        if began == edge.item:
            return edge
        return None if began is None or began >= place else Edge(began, edge.lag_ns, edge.kind)

    queued: list[Sequence[Edge]] = [*program.edges]
    queue = Kind.QUEUE
    for place, each in enumerate(program.edges):
        if any(edge.kind is queue for edge in each):
            queued[place] = [new for edge in each if (new := of(place, edge) if edge.kind is queue else edge)]
    if all(map(_same, queued, program.edges)):
        return program
    return replace(program, edges=queued)


class _Queue:
    """What a rank launches: the places of calls and of begins, in order, and those that are still launched."""

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
