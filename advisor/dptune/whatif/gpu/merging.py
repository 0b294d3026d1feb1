"""Fewer, larger units of fully_shard in a program: neighbors are gathered, and their gradients reduced, together.

A merged unit is gathered where the first of its parts is used, and reduced where the gradients of the last are ready.
Its streams wait as those of any unit do: a gather for the copy out of the unit before the last one in a forward pass,
or of the last one in a backward pass, and a reduction's copy in for the reduction before it.
Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, and _fsdp_state.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.unit_changes import grouped
from dptune.whatif.cpu.wire import Link
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import Edge, Kind, Message
from dptune.whatif.gpu.ordering import ordered
from dptune.whatif.gpu.parts import Part
from dptune.whatif.gpu.precision import SMALLEST_NS
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.sharding import NO_UNITS
from dptune.whatif.gpu.unit_editing import NO_REDUCTIONS, UnitEdit, calls_of_compute
from dptune.whatif.gpu.unit_reductions import UnitReduction

ROOT = ""  # the name of the unit that holds what no other does
_SMALLER = "a GPU trace does not show when smaller units would be used: set fsdp.units to 1 to {}"


def in_units(program: Program, value: Value, side: Side, link: Link) -> Program:
    """So many units of about equal bytes, at most the recorded number; parameters of the root stay a unit."""
    if not program.gathers:
        raise Missing(NO_UNITS)
    if not program.unit_reductions:
        raise Missing(NO_REDUCTIONS)
    sizes, count = sizes_of_units(program), int(value or 0)
    if not 0 < count <= len(sizes):
        raise Missing(_SMALLER.format(len(sizes)))
    return program if count == len(sizes) else _Merging(program, _groups(sizes, count), link).merged(side)


def sizes_of_units(program: Program) -> dict[str, int]:
    """The bytes that each unit gathers, in the order of a forward pass. Raises Missing where ranges name no units."""
    first = program.gathers[0]
    number = program.micro_batches[first.call] if program.micro_batches else None
    gathers = [
        gather
        for gather in sorted(program.gathers, key=lambda gather: gather.used_call)
        if (gather.rank, gather.step, gather.backward) == (first.rank, _whole_step(program), False)
    ]
    found: dict[str, int] = {}
    edit = UnitEdit.of(program)
    for gather in gathers:
        if gather.unit in found and program.micro_batches and program.micro_batches[gather.call] == number:
            raise Missing("the ranges of fully_shard do not name units")
        found[gather.unit] = edit.message(gather.operations[-1][1]).message_bytes
    return found


def _whole_step(program: Program) -> int:
    """A step of which everything was recorded."""
    return min(step.number for step in program.steps)


def _groups(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """By unit the number of the one that it becomes a part of."""
    names = [*sizes]
    if count > 1 and ROOT in names and len(names) > 1:
        names.remove(ROOT)
        found = grouped([float(sizes[name]) for name in names], count - 1)
        return {ROOT: -1, **dict(zip(names, found, strict=True))}
    return dict(zip(names, grouped([float(size) for size in sizes.values()], count), strict=True))


@dataclass(frozen=True, eq=False)
class _Merging:
    """Of a program, by unit the number of its group."""

    before: Program
    group: Mapping[str, int]
    link: Link

    def merged(self, side: Side) -> Program:
        """All passes of all ranks."""
        edit = UnitEdit.of(self.before)
        messages = [*self.before.messages]
        gathers: list[Gather] = []
        for forward, backward in passes_of(self.before):
            earlier = self._gathered(edit, forward, messages, [])
            gathers += [*earlier, *self._gathered(edit, backward, messages, earlier)]
        units: list[UnitReduction] = []
        for reductions in reductions_of(self.before):
            units += self._reduced(edit, reductions, messages)
        before, after = len(self.group), len(set(self.group.values()))
        gone = 1 - after / before
        share = self.before.unit_share.at(side) * gone
        hooks_ns = self.before.spent_ns.get(Part.UNIT_HOOKS, {})
        edit.spending({place: share * spent for place, spent in hooks_ns.items()})
        left_ns = {place: (1 - share) * spent for place, spent in hooks_ns.items()}
        return ordered(
            edit.program(
                messages,
                spent_ns={**self.before.spent_ns, Part.UNIT_HOOKS: left_ns},
                gathers=sorted(gathers, key=lambda gather: gather.call),
                unit_reductions=sorted(units, key=lambda unit: unit.call),
                unit_share=self.before.unit_share.without(gone),
            )
        )

    def _ahead(self, gathers: Sequence[Gather]) -> int:
        """How many units ahead the gathers of a pass are issued; 0: when they are used.

        A gather is ahead of the unit before it if no kernel of that unit was launched earlier.
        """
        calls, in_order, found = (
            self._computing[gathers[0].rank],
            sorted(gathers, key=lambda gather: gather.used_call),
            [],
        )
        for number, gather in enumerate(in_order):
            used = [other for other in in_order[:number] if other.used_call < gather.call]
            if used:
                computed = bisect_left(calls, gather.call) > bisect_left(calls, used[-1].used_call)
                found.append(number - len(used) + (0 if computed else 1))
        return round(median(found)) if found else 0

    @cached_property
    def _computing(self) -> Mapping[int, Sequence[int]]:
        """By rank the calls that launch kernels, but those of fully_shard, in order."""
        found: dict[int, list[int]] = defaultdict(list)
        for begin, call in calls_of_compute(self.before).items():
            found[self.before.ranks[begin]].append(call)
        return {rank: sorted(calls) for rank, calls in found.items()}

    def _named(self, members: Sequence[Gather | UnitReduction]) -> str:
        """The units of a group, in the order of a forward pass."""
        units = {member.unit for member in members}
        return ", ".join(unit for unit in self.group if unit in units)

    def _of(self, unit: str) -> int:
        if unit not in self.group:
            raise Missing(f"the unit {unit or '(root)'} is not in every forward pass")
        return self.group[unit]

    def _gathered(
        self, edit: UnitEdit, gathers: Sequence[Gather], messages: list[Message], earlier: Sequence[Gather]
    ) -> list[Gather]:
        """One gather of each group of a pass, at its first unit. `earlier`: those of the forward pass before."""
        groups: dict[int, list[Gather]] = {}
        for gather in sorted(gathers, key=lambda gather: gather.used_call):
            groups.setdefault(self._of(gather.unit), []).append(gather)
        kept: list[Gather] = []
        for members in groups.values():
            first, *others = members
            if others:
                for number in range(len(first.operations) - 1):
                    edit.lasting(first.operations[number][1], _together(edit, [m.operations for m in members], number))
                self._exchanged(edit, [member.operations[-1][1] for member in members], messages)
                for number in range(len(first.copies)):
                    edit.lasting(first.copies[number][1], _together(edit, [m.copies for m in members], number))
                for other in others:
                    edit.without_gather(other)
            kept.append(replace(first, unit=self._named(members)))
        if len(kept) < len(gathers):
            ahead = self._ahead(gathers)
            for number in range(1, len(kept)):
                self._issued(edit, kept, number, ahead)
            if earlier and not self.before.shared:  # on a shared GPU kernels and collectives take turns
                launches = [[edge for edge in edit.edges[b] if edge.kind == Kind.LAUNCH] for b, _ in kept[0].operations]
                self._waiting(edit, kept[0], earlier[-1], earlier[-1], launches)
        return kept

    def _issued(self, edit: UnitEdit, kept: Sequence[Gather], number: int, ahead: int) -> None:
        """What a gather waits for that follows others in a pass."""
        gather, before, edges = kept[number], kept[number - 1], self.before.edges
        anchor = kept[max(0, number - ahead)] if ahead else gather
        freed = number - max(1, ahead) - (0 if gather.backward else 1)
        launches = [[edge for edge in edges[begin] if edge.kind == Kind.LAUNCH] for begin, _ in gather.operations]
        if ahead and anchor.used_call < gather.call:
            launches = [
                [Edge(anchor.used_call, max((edge.lag_ns for edge in each), default=0.0), Kind.LAUNCH)]
                for each in launches
            ]
        self._waiting(edit, gather, before, kept[freed] if freed >= 0 else None, launches)

    def _waiting(
        self,
        edit: UnitEdit,
        gather: Gather,
        before: Gather,
        copied: Gather | None,
        launches: Sequence[list[Edge]],
    ) -> None:
        """The operations of a gather follow those of another on their streams, and wait for the copy out of a third."""
        for place, (begin, _) in enumerate(gather.operations):
            waits = [gather.operations[place - 1][1]] if place else []
            if len(before.operations) == len(gather.operations):
                waits.append(before.operations[place][1])
            if copied is not None:
                waits.append(copied.copies[-1][1] if copied.copies else copied.used_end)
            edit.edges[begin] = [*launches[place], *(Edge(item, 0.0, Kind.ORDER) for item in waits)]

    def _reduced(
        self, edit: UnitEdit, reductions: Sequence[UnitReduction], messages: list[Message]
    ) -> list[UnitReduction]:
        """One reduction of each group of a pass, at the last of its units."""
        groups: dict[int, list[UnitReduction]] = {}
        for reduction in reductions:
            groups.setdefault(self._of(reduction.unit), []).append(reduction)
        if len(groups) == len(reductions):
            return [*reductions]
        in_turn = _in_turn(self.before, reductions)
        kept: list[UnitReduction] = []
        for members in groups.values():
            *others, last = members
            if others:
                for number, (_, end) in enumerate(last.operations):
                    if number != last.collective:
                        edit.lasting(end, _together(edit, [m.operations for m in members], number))
                self._exchanged(edit, [member.end for member in members], messages)
                for other in others:
                    edit.without_reduction(other)
            whole = replace(
                last,
                unit=self._named(members),
                ready=tuple(place for member in members for place in member.ready),
                called=tuple(place for member in members for place in member.called),
            )
            if kept:
                self._after(edit, kept[-1], whole, in_turn=in_turn)
            kept.append(whole)
        return kept

    def _after(self, edit: UnitEdit, before: UnitReduction, unit: UnitReduction, *, in_turn: bool) -> None:
        """A reduction follows another on its stream; its copies in wait for that, too, where the recorded ones do."""
        waiting = [unit.operations[unit.collective][0]]
        if in_turn:
            waiting.append(unit.operations[0][0])
        for begin in waiting:
            edit.edges[begin] = [*edit.edges[begin], Edge(before.operations[-1][1], 0.0, Kind.ORDER)]

    def _exchanged(self, edit: UnitEdit, ends: Sequence[int], messages: list[Message]) -> None:
        """The last end of reductions, or the first of gathers, is that of one collective of all bytes.

        Beside the same compute as before: it takes as many times what the link says as that one did.
        """
        sent = [edit.message(end) for end in ends]
        at = 0 if sent[0].kind == "all_gather" else -1
        end, total = ends[at], sum(message.message_bytes for message in sent)
        longer = self.link.alone_ns(total) / self.link.alone_ns(sent[at].message_bytes)
        edit.lasting(end, edit.took_ns(end) * longer)
        number = next(edge.message for edge in self.before.edges[end] if edge.kind == Kind.EXCHANGE)
        messages[number] = replace(messages[number], message_bytes=total)


def _together(edit: UnitEdit, members: Sequence[Sequence[tuple[int, int]]], number: int) -> float:
    """How long one operation takes for several units: what they take, without the smallest kernel of the others."""
    took_ns = [edit.took_ns(each[number][1]) for each in members if number < len(each)]
    return sum(took_ns) - sum(min(SMALLEST_NS, took) for took in took_ns[1:])


def passes_of(program: Program) -> list[tuple[list[Gather], list[Gather]]]:
    """Of each micro-batch of a rank the gathers of its forward and of its backward pass."""
    found: dict[tuple[int, int, int], tuple[list[Gather], list[Gather]]] = {}
    for gather in program.gathers:
        number = program.micro_batches[gather.call] if program.micro_batches else 0
        found.setdefault((gather.rank, gather.step, number), ([], []))[gather.backward].append(gather)
    return [*found.values()]


def reductions_of(program: Program) -> list[list[UnitReduction]]:
    """The reductions of each backward pass of a rank, in order."""
    found: dict[tuple[int, int, int], list[UnitReduction]] = defaultdict(list)
    for unit in sorted(program.unit_reductions, key=lambda unit: unit.call):
        number = program.micro_batches[unit.call] if program.micro_batches else 0
        found[unit.rank, unit.step, number].append(unit)
    return [*found.values()]


def _in_turn(program: Program, reductions: Sequence[UnitReduction]) -> bool:
    """Whether each unit's gradients are copied in once those of the unit before are reduced."""
    recorded_ns = program.recorded_ns
    return all(recorded_ns[before.end] <= recorded_ns[after.operations[0][0]] for before, after in pairwise(reductions))
