"""Edges of a program made longer or shorter, or taken away; where all stay as they are, the program does."""

from __future__ import annotations

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

    def of(place: int, edge: Edge) -> Edge:
        return edge.lasting(0.0) if edge.lag_ns and gone(place) else edge

    return with_edges(program, of)


def with_room(program: Program) -> Program:
    """The program whose launch queue is never full: far fewer operations are launched than were recorded."""
    return with_edges(program, lambda _, edge: None if edge.kind == Kind.QUEUE else edge)
