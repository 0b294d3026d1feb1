"""Items of a program in an order in which each comes after all that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise

from dptune.measured import Missing
from dptune.whatif.gpu.graph import Edge
from dptune.whatif.gpu.program import Program


def ordered(program: Program) -> Program:
    """The program with its items sorted: of several that could be next, the one recorded first."""
    order = _order(program.recorded_ns, program.edges)
    places = [0] * len(order)
    for place, item in enumerate(order):
        places[item] = place
    moved = [
        Edge(places[edge.item], edge.lag_ns, edge.kind, edge.message) for item in order for edge in program.edges[item]
    ]
    borders = [0, *accumulate(len(program.edges[item]) for item in order)]
    edges = [moved[first:last] for first, last in pairwise(borders)]
    return replace(
        program,
        recorded_ns=[program.recorded_ns[item] for item in order],
        edges=edges,
        steps=[step.moved(places) for step in program.steps],
        ranks=[program.ranks[item] for item in order],
        micro_batches=[program.micro_batches[item] for item in order] if program.micro_batches else (),
        parts=[program.parts[item] for item in order] if program.parts else (),
        gathers=[gather.moved(places) for gather in program.gathers],
        unit_reductions=[reduction.moved(places) for reduction in program.unit_reductions],
        reductions=[reduction.moved(places) for reduction in program.reductions],
        transfers=[transfer.moved(places) for transfer in program.transfers],
        beside={places[item]: share for item, share in program.beside.items()},
        uploads={places[item]: size for item, size in program.uploads.items()},
        queues={places[item]: queue for item, queue in program.queues.items()},
        spent_ns={
            part: {places[item]: spent for item, spent in each.items()} for part, each in program.spent_ns.items()
        },
        fixed=frozenset(places[item] for item in program.fixed),
    )


def _order(recorded_ns: Sequence[int], edges: Sequence[Sequence[Edge]]) -> list[int]:
    by_time = sorted(range(len(edges)), key=recorded_ns.__getitem__)
    places = [0] * len(by_time)
    for place, item in enumerate(by_time):
        places[item] = place
    if all(places[edge.item] < place for place, each in zip(places, edges, strict=True) for edge in each):
        return by_time
    waiting = [len(each) for each in edges]
    followers: list[list[int]] = [[] for _ in edges]
    for item, each in enumerate(edges):
        for edge in each:
            followers[edge.item].append(item)
    ready = [(recorded_ns[item], item) for item, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        _, item = heappop(ready)
        order.append(item)
        for follower in followers[item]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, (recorded_ns[follower], follower))
    if len(order) < len(edges):
        raise Missing("the ranks' clocks are too far apart: their operations would wait for each other in a cycle")
    return order
