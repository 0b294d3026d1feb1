"""Items of a program in an order in which each comes after all that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from dptune.measured import Missing
from dptune.whatif.gpu.columns import Columns
from dptune.whatif.gpu.program import Program


def ordered(program: Program) -> Program:
    """The program with its items sorted: of several that could be next, the one recorded first."""
    order = _order(program.recorded_ns, program.columns)
    places_of = np.empty(len(order), dtype=np.int64)
    places_of[order] = np.arange(len(order))
    places, columns = places_of.tolist(), program.columns.moved(places_of)

    def in_order(values: Sequence[int]) -> list[int]:
        return list(map(values.__getitem__, order))

    return replace(
        program,
        recorded_ns=in_order(program.recorded_ns),
        edges=columns.edges(),
        steps=[step.moved(places) for step in program.steps],
        ranks=in_order(program.ranks),
        micro_batches=in_order(program.micro_batches) if program.micro_batches else (),
        parts=in_order(program.parts) if program.parts else (),
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
    ).knowing(columns)


def _order(recorded_ns: Sequence[int], columns: Columns) -> list[int]:
    by_time = np.argsort(np.array(recorded_ns, dtype=np.float64), kind="stable")
    places = np.empty(len(by_time), dtype=np.int64)
    places[by_time] = np.arange(len(by_time))
    if (places[columns.item] < places[columns.place]).all():
        return by_time.tolist()  # type: ignore[no-any-return]
    waiting = [0] * columns.count
    followers: list[list[int]] = [[] for _ in waiting]
    for item, awaited in zip(columns.place.tolist(), columns.item.tolist(), strict=True):
        waiting[item] += 1
        followers[awaited].append(item)
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
    if len(order) < columns.count:
        raise Missing("the ranks' clocks are too far apart: their operations would wait for each other in a cycle")
    return order
