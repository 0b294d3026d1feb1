"""Fewer, larger units of fully_shard in a program: neighbors are gathered, and their gradients reduced, together.

A merged unit is gathered where the first of its parts is used, and reduced where the gradients of the last are ready.
Its streams wait as those of any unit do: a gather for the copy out of the unit before the last one in a forward pass,
or of the last one in a backward pass, and a reduction's copy in for the reduction before it.
Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, and _fsdp_state.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.unit_changes import grouped
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import Kind, Message
from dptune.whatif.gpu.links import known_link
from dptune.whatif.gpu.ordering import ordered
from dptune.whatif.gpu.parts import Part
from dptune.whatif.gpu.precision import SMALLEST_NS
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.sharding import NO_UNITS
from dptune.whatif.gpu.splitting import parts_of_units, split
from dptune.whatif.gpu.unit_editing import NO_REDUCTIONS, UnitEdit, hooks_times
from dptune.whatif.gpu.unit_issuing import Issuing, reduced_after, reduced_in_turn
from dptune.whatif.gpu.unit_reductions import UnitReduction

ROOT = ""  # the name of the unit that holds what no other does


def in_units(program: Program, value: Value, side: Side) -> Program:
    """So many units of about equal bytes; parameters of the root stay a unit, unless they are the only one."""
    if not program.gathers:
        raise Missing(NO_UNITS)
    if not program.unit_reductions:
        raise Missing(NO_REDUCTIONS)
    link, sizes, count = known_link(program), sizes_of_units(program), int(value or 0)
    if count < 1:
        raise Missing("a model needs at least one unit")
    if count == len(sizes):
        return program
    if count > len(sizes):
        tensors = {unit.unit: len(unit.ready) for unit in program.unit_reductions}
        if count > sum(tensors.values()):
            raise Missing(f"fsdp.units exceeds the {sum(tensors.values())} tensors in the model's units")
        return split(program, parts_of_units(sizes, count, ROOT), side, link)
    return _Merging(program, _groups(sizes, count), link).merged(side)


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
        messages, issuing = [*self.before.messages], Issuing(edit)
        gathers: list[Gather] = []
        for forward, backward in passes_of(self.before):
            earlier = self._gathered(issuing, forward, messages, [])
            gathers += [*earlier, *self._gathered(issuing, backward, messages, earlier)]
        units: list[UnitReduction] = []
        for reductions in reductions_of(self.before):
            units += self._reduced(edit, reductions, messages)
        before, after = len(self.group), len(set(self.group.values()))
        gone = 1 - after / before
        share = self.before.unit_share.at(side) * gone
        hooks_ns = self.before.spent_ns.get(Part.UNIT_HOOKS, {})
        edit.spending({place: share * spent for place, spent in hooks_ns.items()})
        return ordered(
            edit.program(
                messages,
                spent_ns=hooks_times(self.before, 1 - share),
                gathers=sorted(gathers, key=lambda gather: gather.call),
                unit_reductions=sorted(units, key=lambda unit: unit.call),
                unit_share=self.before.unit_share.without(gone),
            )
        )

    def _named(self, members: Sequence[Gather | UnitReduction]) -> str:
        """The units of a group, in the order of a forward pass."""
        units = {member.unit for member in members}
        return ", ".join(unit for unit in self.group if unit in units)

    def _of(self, unit: str) -> int:
        if unit not in self.group:
            raise Missing(f"the unit {unit or '(root)'} is not in every forward pass")
        return self.group[unit]

    def _gathered(
        self, issuing: Issuing, gathers: Sequence[Gather], messages: list[Message], earlier: Sequence[Gather]
    ) -> list[Gather]:
        """One gather of each group of a pass, at its first unit. `earlier`: those of the forward pass before."""
        edit, groups = issuing.edit, dict[int, list[Gather]]()
        for gather in sorted(gathers, key=lambda gather: gather.used_call):
            groups.setdefault(self._of(gather.unit), []).append(gather)
        kept: list[Gather] = []
        for members in groups.values():
            first, *others = members
            if others:
                for number in range(len(first.operations) - 1):
                    edit.lasting(first.operations[number][1], _together(edit, [m.operations for m in members], number))
                self._communicated(edit, [member.operations[-1][1] for member in members], messages)
                for number in range(len(first.copies)):
                    edit.lasting(first.copies[number][1], _together(edit, [m.copies for m in members], number))
                for other in others:
                    edit.without_gather(other)
            kept.append(replace(first, unit=self._named(members)))
        if len(kept) < len(gathers):
            issuing.again(gathers, kept, earlier)
        return kept

    def _reduced(
        self, edit: UnitEdit, reductions: Sequence[UnitReduction], messages: list[Message]
    ) -> list[UnitReduction]:
        """One reduction of each group of a pass, at the last of its units."""
        groups: dict[int, list[UnitReduction]] = {}
        for reduction in reductions:
            groups.setdefault(self._of(reduction.unit), []).append(reduction)
        if len(groups) == len(reductions):
            return [*reductions]
        in_turn = reduced_in_turn(self.before, reductions)
        kept: list[UnitReduction] = []
        for members in groups.values():
            *others, last = members
            if others:
                for number, (_, end) in enumerate(last.operations):
                    if number != last.collective:
                        edit.lasting(end, _together(edit, [m.operations for m in members], number))
                self._communicated(edit, [member.end for member in members], messages)
                for other in others:
                    edit.without_reduction(other)
            whole = replace(
                last,
                unit=self._named(members),
                ready=tuple(place for member in members for place in member.ready),
                called=tuple(place for member in members for place in member.called),
            )
            if kept:
                reduced_after(edit, kept[-1], whole, in_turn=in_turn)
            kept.append(whole)
        return kept

    def _communicated(self, edit: UnitEdit, ends: Sequence[int], messages: list[Message]) -> None:
        """The last end of reductions, or the first of gathers, is that of one collective of all bytes.

        Beside the same compute as before: it takes as many times what the link says as that one did.
        """
        sent = [edit.message(end) for end in ends]
        at = 0 if sent[0].kind == "all_gather" else -1
        end, total = ends[at], sum(message.message_bytes for message in sent)
        longer = self.link.alone_ns(total) / self.link.alone_ns(sent[at].message_bytes)
        edit.lasting(end, edit.took_ns(end) * longer)
        number = next(edge.message for edge in self.before.edges[end] if edge.kind == Kind.COLLECTIVE)
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
