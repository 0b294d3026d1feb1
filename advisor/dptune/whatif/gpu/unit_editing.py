"""Collectives of fully_shard taken out of a program: what is left waits for no other stream, and for no other rank."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dptune.measured import Missing
from dptune.whatif.gpu.editing import requeued, spared
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import COMPUTING, OF_HOST, Edge, Kind, Message
from dptune.whatif.gpu.parts import Part
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.unit_reductions import UnitReduction

NO_REDUCTIONS = "the trace has no fully_shard (FSDP2) ranges around reduce-scatters; FSDP1 does not write them"
_OF_HOOKS = frozenset({Part.UNIT_HOOKS, Part.UNIT_REDUCING, Part.REGATHER})
_WORK = COMPUTING | {Kind.COPY, Kind.COLLECTIVE}


def begins_of_units(program: Program) -> set[int]:
    """The places where operations of fully_shard begin."""
    gathered = {begin for gather in program.gathers for begin, _ in (*gather.operations, *gather.copies)}
    return gathered | {begin for unit in program.unit_reductions for begin, _ in unit.operations}


def calls_of_compute(program: Program) -> dict[int, int]:
    """By begin of a kernel the place of the call that launches it; kernels of fully_shard are left out."""
    ends = program.places(COMPUTING)
    begins = {edge.item for place in ends for edge in program.edges[place] if edge.kind in COMPUTING}
    kept = begins - begins_of_units(program)
    return {place: edge.item for place in kept for edge in program.edges[place] if edge.kind == Kind.LAUNCH}


@dataclass(frozen=True, eq=False)
class UnitEdit:
    """Edges of a program that change; by place the ends of operations of fully_shard's own streams, and gone calls."""

    before: Program
    edges: list[Sequence[Edge]]
    beside: frozenset[int]
    gone: set[int]

    @classmethod
    def of(cls, program: Program) -> UnitEdit:
        """Nothing is changed yet."""
        communicated = [place for gather in program.gathers for _, place in gather.operations]
        communicated += [place for unit in program.unit_reductions for _, place in unit.operations[unit.collective :]]
        return cls(program, [*program.edges], frozenset(communicated), set())

    def without_gather(self, gather: Gather) -> None:
        """The unit is neither gathered nor copied out."""
        for begin, end in gather.operations:
            self._beside(begin, end)
        for begin, end in gather.copies:
            self._between(begin, end)

    def without_reduction(self, reduction: UnitReduction) -> None:
        """The gradients of the unit are neither copied in nor reduced."""
        for number, (begin, end) in enumerate(reduction.operations):
            if number < reduction.collective:
                self._between(begin, end)
            else:
                self._beside(begin, end)

    def _beside(self, begin: int, end: int) -> None:
        """An operation of a stream of its own is gone: it takes no time, and waits for its call alone."""
        self.edges[begin] = [edge.lasting(0.0) for edge in self.edges[begin] if edge.kind == Kind.LAUNCH]
        self.edges[end] = [Edge(begin, 0.0, Kind.ORDER)]
        self._no_call(begin)

    def _between(self, begin: int, end: int) -> None:
        """A kernel of the compute stream is gone: what follows it there waits for what was before it."""
        self.edges[begin] = [edge.lasting(0.0) for edge in self.edges[begin] if edge.item not in self.beside]
        self.edges[end] = [edge.lasting(0.0) for edge in self.edges[end]]
        self._no_call(begin)

    def _no_call(self, begin: int) -> None:
        self.gone.update(edge.item for edge in self.before.edges[begin] if edge.kind == Kind.LAUNCH)

    def lasting(self, end: int, lag_ns: float) -> None:
        """An operation takes so long."""
        self.edges[end] = [edge.lasting(lag_ns) if edge.kind in _WORK else edge for edge in self.edges[end]]

    def took_ns(self, end: int) -> float:
        """How long an operation took, a collective from the last rank's begin."""
        return max((edge.lag_ns for edge in self.before.edges[end] if edge.kind in _WORK), default=0.0)

    def message(self, end: int) -> Message:
        """What a collective sends. Raises Missing where not all of its ranks were read."""
        found = next((edge.message for edge in self.before.edges[end] if edge.kind == Kind.COLLECTIVE), None)
        if found is None:
            raise Missing("the size of a collective of fully_shard is unknown, or not all its ranks were read")
        return self.before.messages[found]

    def spending(self, spent_ns: Mapping[int, float]) -> None:
        """The host spends this much less before these items; more where that is negative."""
        for place, edges in spared(self.edges, spent_ns).items():
            self.edges[place] = edges

    def program(self, messages: Sequence[Message] = (), **fields: object) -> Program:
        """The program after the edit, whose launch queue has room for what is still launched."""
        changed = replace(self.before, edges=self.edges, messages=messages or self.before.messages)
        return replace(requeued(changed, self.gone), **fields)  # type: ignore[arg-type]


def hooks_times(program: Program, times: float) -> dict[Part, Mapping[int, float]]:
    """What hosts spend on parts, of which all in hooks of fully_shard takes so many times as long."""
    return {
        part: {place: times * spent for place, spent in each.items()} if part in _OF_HOOKS else each
        for part, each in program.spent_ns.items()
    }


class HostTimes:
    """What hosts spend on a part of a program, by place."""

    def __init__(self, program: Program, part: Part) -> None:
        self._ranks = program.ranks
        self._following = {
            edge.item: place
            for place in program.places(OF_HOST)
            for edge in program.edges[place]
            if edge.kind in OF_HOST
        }
        self._spent_ns = program.spent_ns.get(part, {})
        self._by_rank: dict[int, list[int]] = defaultdict(list)
        for place in sorted(self._spent_ns):
            self._by_rank[program.ranks[place]].append(place)

    def around(self, calls: Iterable[Sequence[int]]) -> dict[int, float]:
        """Between the first and the last of several calls, and just after the last; by place."""
        found: dict[int, float] = {}
        for places in calls:
            of_rank = self._by_rank[self._ranks[places[0]]]
            first, last = min(places), self._following.get(max(places), max(places))
            for place in of_rank[bisect_left(of_rank, first) : bisect_left(of_rank, last + 1)]:
                found[place] = self._spent_ns[place]
        return found
