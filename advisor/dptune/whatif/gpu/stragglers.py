"""A rank that is no longer late, or work that is spread evenly, in a program.

Kernels and copies of the late rank take as long in each step as the median rank's do, its calls and its waits for
batches as long as the median rank's in the median step: hosts run ahead of their devices, so a call belongs to no step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import mean, median

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.topology import ALONE
from dptune.whatif.gpu.program import COMPUTING, Edge, Kind, Program

_DEVICE = frozenset({*COMPUTING, Kind.COPY})
_PASSES = frozenset({Kind.HOST})
_BEFORE_STEPS = -1
_Key = tuple[int, int]  # rank, step


def without_straggler(program: Program, value: Value) -> Program:
    """The rank that arrives latest takes as long as the median of the others, where it takes longer."""
    if not value:
        return program
    late = latest(program)
    device = _spent(program, _DEVICE)
    factors: dict[_Key, float] = {}
    for (rank, number), ns in device.items():
        if rank == late and ns:
            factors[rank, number] = min(1.0, _median_of_others(device, late, number, ns) / ns)
    host = {kind: _of_ranks(_spent(program, {kind})) for kind in (Kind.HOST, Kind.UPDATING, Kind.INPUT)}
    of_host = {
        kind: min(1.0, median(other for rank, other in spent.items() if rank != late) / spent[late])
        for kind, spent in host.items()
        if spent.get(late) and len(spent) > 1
    }
    return _scaled(program, factors, {late: of_host})


def balanced(program: Program, value: Value) -> Program:
    """The kernels of each step take the mean over ranks of what they took, and so does what hosts do for its passes."""
    if not value:
        return program
    latest(program)
    even = _scaled(program, _evening(program, COMPUTING), {}, COMPUTING)
    return _scaled(even, _evening(program, _PASSES), {}, _PASSES)


def _evening(program: Program, kinds: frozenset[Kind]) -> dict[_Key, float]:
    """By rank and step what makes the time of these kinds the mean over ranks."""
    spent = _spent(program, kinds)
    totals: dict[int, list[float]] = defaultdict(list)
    for (_, number), ns in spent.items():
        totals[number].append(ns)
    ranks = len(set(program.ranks))
    return {
        (rank, number): mean(totals[number]) / ns
        for (rank, number), ns in spent.items()
        if ns and len(totals[number]) == ranks
    }


def latest(program: Program) -> int:
    """The rank that arrives latest at collectives, in the mean. Raises Missing where ranks share none."""
    late: dict[int, list[int]] = defaultdict(list)
    for place, edges in enumerate(program.edges):
        begins = [edge.item for edge in edges if edge.kind == Kind.EXCHANGE]
        if begins and program.ranks[place] == program.ranks[begins[0]]:  # each collective once
            first = min(program.recorded_ns[begin] for begin in begins)
            for begin in begins:
                late[program.ranks[begin]].append(program.recorded_ns[begin] - first)
    if len(late) < 2:
        raise Missing(ALONE if program.world_size == 1 else "no collective was matched on several ranks")
    return max(late, key=lambda rank: mean(late[rank]))


def _median_of_others(spent: Mapping[_Key, float], late: int, number: int, default: float) -> float:
    others = [ns for (rank, step), ns in spent.items() if step == number and rank != late]
    return median(others) if others else default


def _of_ranks(spent: Mapping[_Key, float]) -> dict[int, float]:
    """By rank the median over its steps."""
    found: dict[int, list[float]] = defaultdict(list)
    for (rank, number), ns in spent.items():
        if number != _BEFORE_STEPS:
            found[rank].append(ns)
    return {rank: median(each) for rank, each in found.items()}


def _spent(program: Program, kinds: frozenset[Kind] | set[Kind]) -> dict[_Key, float]:
    """The time of edges of these kinds, by rank and step."""
    step_of, found = _steps(program), defaultdict[_Key, float](float)
    for place, edges in enumerate(program.edges):
        for edge in edges:
            if edge.kind in kinds:
                found[program.ranks[place], step_of(place)] += edge.lag_ns
    return found


def _steps(program: Program) -> Callable[[int], int]:
    """The step in which an item was recorded, by its place."""
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step in program.steps:
        begins[step.rank].append((program.recorded_ns[step.first], step.number))
    in_order = {rank: sorted(each) for rank, each in begins.items()}
    starts = {rank: [start for start, _ in each] for rank, each in in_order.items()}

    def of(place: int) -> int:
        rank = program.ranks[place]
        at = bisect_right(starts.get(rank, ()), program.recorded_ns[place]) - 1
        return in_order[rank][at][1] if at >= 0 else _BEFORE_STEPS

    return of


def _scaled(
    program: Program,
    of_steps: Mapping[_Key, float],
    of_hosts: Mapping[int, Mapping[Kind, float]],
    kinds: frozenset[Kind] = _DEVICE,
) -> Program:
    """Edges of these kinds so many times as long as their rank and step say, those of hosts as their rank does."""
    step_of = _steps(program)

    def of(place: int, edge: Edge) -> Edge:
        rank = program.ranks[place]
        if edge.kind in kinds:
            factor = of_steps.get((rank, step_of(place)), 1.0)
        else:
            factor = of_hosts.get(rank, {}).get(edge.kind, 1.0)
        return edge if factor == 1.0 else edge.lasting(edge.lag_ns * factor)

    edges = [[of(place, edge) for edge in each] for place, each in enumerate(program.edges)]
    return replace(program, edges=edges)
