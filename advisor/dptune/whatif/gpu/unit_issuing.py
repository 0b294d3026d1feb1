"""When the gathers of a pass are issued, and what they wait for, once units are others than recorded.

Sources: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, and _fsdp_state.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import Edge, Kind
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.unit_editing import UnitEdit, calls_of_compute
from dptune.whatif.gpu.unit_reductions import UnitReduction


@dataclass(frozen=True, eq=False)
class Issuing:
    """Of an edit of a program."""

    edit: UnitEdit

    def again(
        self, recorded: Sequence[Gather], gathers: Sequence[Gather], earlier: Sequence[Gather], ahead: int | None = None
    ) -> None:
        """The gathers of a pass follow each other, as far ahead as the recorded ones.

        `earlier`: those of the forward pass before a backward pass. `ahead`: so many, in place of the recorded number:
        none is issued earlier than that, as a recorded gather of a unit before one that is split would be.
        """
        many = self.ahead(recorded) if ahead is None else ahead
        for number in range(1, len(gathers)):
            self._issued(gathers, number, many, later=ahead is not None)
        if earlier and not self.edit.before.shared:  # on a shared GPU kernels and collectives take turns
            self._waiting(gathers[0], earlier[-1], earlier[-1], [self._launches(b) for b, _ in gathers[0].operations])

    def ahead(self, gathers: Sequence[Gather]) -> int:
        """How many units ahead the gathers of a pass are issued; 0: when they are used.

        A gather is ahead of the unit before it if no kernel of that unit was launched earlier.
        """
        calls, found = self.computing[gathers[0].rank], list[int]()
        in_order = sorted(gathers, key=lambda gather: gather.used_call)
        for number, gather in enumerate(in_order):
            used = [other for other in in_order[:number] if other.used_call < gather.call]
            if used:
                computed = bisect_left(calls, gather.call) > bisect_left(calls, used[-1].used_call)
                found.append(number - len(used) + (0 if computed else 1))
        return round(median(found)) if found else 0

    @cached_property
    def computing(self) -> Mapping[int, Sequence[int]]:
        """By rank the calls that launch kernels, but those of fully_shard, in order."""
        found: dict[int, list[int]] = defaultdict(list)
        for begin, call in calls_of_compute(self.edit.before).items():
            found[self.edit.before.ranks[begin]].append(call)
        return {rank: sorted(calls) for rank, calls in found.items()}

    def _launches(self, begin: int) -> list[Edge]:
        return [edge for edge in self.edit.edges[begin] if edge.kind == Kind.LAUNCH]

    def _issued(self, gathers: Sequence[Gather], number: int, ahead: int, *, later: bool) -> None:
        """What a gather waits for that follows others in a pass."""
        gather, before = gathers[number], gathers[number - 1]
        anchor = gathers[max(0, number - ahead)] if ahead else gather
        freed = number - max(1, ahead) - (0 if gather.backward else 1)
        launches = [self._launches(begin) for begin, _ in gather.operations]
        if ahead and (anchor.used_call < gather.call or (later and number >= ahead)):
            launches = [
                [Edge(anchor.used_call, max((edge.lag_ns for edge in each), default=0.0), Kind.LAUNCH)]
                for each in launches
            ]
        self._waiting(gather, before, gathers[freed] if freed >= 0 else None, launches)

    def _waiting(self, gather: Gather, before: Gather, copied: Gather | None, launches: Sequence[list[Edge]]) -> None:
        """The operations of a gather follow those of another on their streams, and wait for the copy out of a third."""
        for place, (begin, _) in enumerate(gather.operations):
            waits = [gather.operations[place - 1][1]] if place else []
            if len(before.operations) == len(gather.operations):
                waits.append(before.operations[place][1])
            if copied is not None:
                waits.append(copied.copies[-1][1] if copied.copies else copied.used_end)
            self.edit.edges[begin] = [*launches[place], *(Edge(item, 0.0, Kind.ORDER) for item in waits)]


def reduced_after(edit: UnitEdit, before: UnitReduction, unit: UnitReduction, *, in_turn: bool) -> None:
    """A reduction follows another on its stream; its copies in wait for that, too, where the recorded ones do."""
    waiting = [unit.operations[unit.collective][0]]
    if in_turn:
        waiting.append(unit.operations[0][0])
    for begin in waiting:
        edit.edges[begin] = [*edit.edges[begin], Edge(before.operations[-1][1], 0.0, Kind.ORDER)]


def reduced_in_turn(program: Program, reductions: Sequence[UnitReduction]) -> bool:
    """Whether each unit's gradients are copied in once those of the unit before are reduced."""
    recorded_ns = program.recorded_ns
    return all(recorded_ns[before.end] <= recorded_ns[after.operations[0][0]] for before, after in pairwise(reductions))
