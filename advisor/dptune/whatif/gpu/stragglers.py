"""A rank that is no longer late, or work that is spread evenly, in a program.

Ranks run the same script, so the nth call that launches something in a step of one rank does what the nth call of the
others does: kernels and copies, the gaps before them, and what the host did before the call, are compared with the same
call's on the others. Where ranks launch different numbers of operations, whole steps are compared.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean, median

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.topology import ALONE
from dptune.whatif.gpu.editing import with_edges
from dptune.whatif.gpu.graph import COMPUTING, Edge, Kind
from dptune.whatif.gpu.host_work import HostWork
from dptune.whatif.gpu.program import Program

_DEVICE = frozenset({*COMPUTING, Kind.COPY})
_HOST = frozenset({Kind.HOST, Kind.UPDATING, Kind.INPUT})
_GAPS = frozenset({Kind.ORDER})
_PASSES = frozenset({Kind.HOST})
_Key = tuple[int, int]  # step, the number of a call in it
_Spent = Mapping[_Key, Mapping[int, float]]  # by what is the same, what each rank spends on it
_KeyOf = Callable[[int, Edge], _Key | None]


def without_straggler(program: Program, value: Value) -> Program:
    """The rank that arrives latest takes as long as the median of the others, in the steps in which it takes longer.

    A rank that is late in some steps takes over no delay of others in the rest, and its host varies as before.
    """
    if not value:
        return program
    late = latest(program)

    def median_of_others(spent: _Spent) -> dict[_Key, dict[int, float]]:
        known = {key: of_ranks for key, of_ranks in spent.items() if of_ranks.get(late) and len(of_ranks) > 1}
        others = {key: median(ns for rank, ns in of_ranks.items() if rank != late) for key, of_ranks in known.items()}
        longer_ns: dict[int, float] = defaultdict(float)
        for key, of_ranks in known.items():
            longer_ns[key[0]] += of_ranks[late] - others[key]
        return {key: {late: others[key] / of_ranks[late]} for key, of_ranks in known.items() if longer_ns[key[0]] > 0}

    calls = _calls(program)
    key_of = calls or _steps(program)
    for kinds in (_DEVICE, _HOST, _GAPS):
        of_calls = kinds == _HOST and calls is not None
        program = _evened(program, kinds, key_of, HostWork(late).factors if of_calls else median_of_others)
    return program


def balanced(program: Program, value: Value) -> Program:
    """The kernels of each step take the mean over ranks of what they took, and so does what hosts do for its passes.

    By chance, hosts still vary as they did from step to step.
    """
    if not value:
        return program
    latest(program)
    ranks = len(set(program.ranks))

    def mean_of_all(spent: _Spent) -> dict[_Key, dict[int, float]]:
        means = {key: fmean(of_ranks.values()) for key, of_ranks in spent.items() if len(of_ranks) == ranks}
        return {key: {rank: mean_ns / ns for rank, ns in spent[key].items() if ns} for key, mean_ns in means.items()}

    calls = _calls(program)
    key_of = calls or _steps(program)
    for kinds in (COMPUTING, _PASSES):
        of_calls = kinds == _PASSES and calls is not None
        program = _evened(program, kinds, key_of, HostWork().factors if of_calls else mean_of_all)
    return program


def latest(program: Program) -> int:
    """The rank that arrives latest at collectives, in the mean. Raises Missing where ranks share none."""
    late: dict[int, list[int]] = defaultdict(list)
    for place in program.places((Kind.COLLECTIVE,)):
        begins = program.begins(place)
        if begins and program.ranks[place] == program.ranks[begins[0]]:  # each collective once
            first = min(program.recorded_ns[begin] for begin in begins)
            for begin in begins:
                late[program.ranks[begin]].append(program.recorded_ns[begin] - first)
    if len(late) < 2:
        raise Missing(ALONE if program.world_size == 1 else "no collective of known size was matched on all its ranks")
    return max(late, key=lambda rank: fmean(late[rank]))


def _evened(
    program: Program,
    kinds: frozenset[Kind],
    key_of: _KeyOf,
    factors_of: Callable[[_Spent], dict[_Key, dict[int, float]]],
) -> Program:
    """Edges of these kinds so many times as long as `factors_of` says, of what the ranks spend on the same."""
    spent: defaultdict[_Key, dict[int, float]] = defaultdict(dict)
    for place in program.places(kinds):
        rank = program.ranks[place]
        for edge in program.edges[place]:
            if edge.kind in kinds and (key := key_of(place, edge)) is not None:
                spent[key][rank] = spent[key].get(rank, 0.0) + edge.lag_ns
    factors = factors_of(spent)

    def of(place: int, edge: Edge) -> Edge:
        if (key := key_of(place, edge)) is None:
            return edge
        factor = factors.get(key, {}).get(program.ranks[place], 1.0)
        return edge if factor == 1.0 else edge.lasting(edge.lag_ns * factor)

    return with_edges(program, kinds, of)


def _steps(program: Program) -> _KeyOf:
    """The step in which an item was recorded."""
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step in program.steps:
        begins[step.rank].append((program.recorded_ns[step.first], step.number))
    in_order = {rank: sorted(each) for rank, each in begins.items()}
    starts = {rank: [start for start, _ in each] for rank, each in in_order.items()}

    def of(place: int, _: Edge) -> _Key | None:
        rank = program.ranks[place]
        at = bisect_right(starts.get(rank, ()), program.recorded_ns[place]) - 1
        return (in_order[rank][at][1], 0) if at >= 0 else None

    return of


def _calls(program: Program) -> _KeyOf | None:
    """The call that launched an operation, or that the host came to; None where ranks launch different numbers."""
    launched: dict[int, int] = {}  # by the place of an operation's begin that of its call
    for place in program.places((Kind.LAUNCH,)):
        for edge in program.edges[place]:
            if edge.kind == Kind.LAUNCH:
                launched[place] = edge.item
    calls: dict[int, list[int]] = defaultdict(list)
    for call in sorted(set(launched.values())):
        calls[program.ranks[call]].append(call)
    found: dict[int, _Key] = {}
    counts: dict[int, Counter[int]] = {}
    for rank, of_rank in calls.items():
        starts = sorted((step.calls[0], step.number) for step in program.steps if step.rank == rank and step.calls)
        if not starts:
            return None
        first = [place for place, _ in starts]
        counts[rank] = Counter()
        for call in of_rank:
            at = bisect_right(first, call) - 1
            step = starts[at][1] if at >= 0 else starts[0][1] - 1
            found[call] = step, counts[rank][step]
            counts[rank][step] += 1
    inner = {number for step in program.steps for number in [step.number] if step.calls}
    by_step = [{of_rank[number] for of_rank in counts.values()} for number in inner]
    if not by_step or any(len(numbers) != 1 for numbers in by_step):
        return None

    first_of = {step.first: (step.number, -1) for step in program.steps}  # launched before the first step: as recorded

    def of(place: int, edge: Edge) -> _Key | None:
        if edge.kind not in _HOST:
            begin = place if edge.kind in _GAPS else edge.item
            return found.get(launched.get(begin, -1)) or first_of.get(begin)
        of_rank = calls[program.ranks[place]]
        at = bisect_left(of_rank, place)
        return found[of_rank[at]] if at < len(of_rank) else None

    return of
