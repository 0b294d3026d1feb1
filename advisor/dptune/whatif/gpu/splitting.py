"""More, smaller units of fully_shard in a program: the parts of a unit are gathered and reduced one by one.

The parts of a unit are of equal bytes and of as many gradients, in the order in which these become ready. In a backward
pass a part begins where the gradients of the part before are ready; in a forward pass, and in a backward pass that
reduces no gradients, as many kernels into the unit.
Each is gathered as far ahead as recorded units are, one ahead in a backward pass where there is one recorded unit only,
and copied out before its first kernel; its gradients are copied in and reduced once they are ready.
Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from dptune.measured import Missing
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.additions import Additions
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.links import ALONE, SLOWED
from dptune.whatif.gpu.ordering import ordered
from dptune.whatif.gpu.part_operations import PartOperations
from dptune.whatif.gpu.parts import Part
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.sharding import TAKING_TURNS
from dptune.whatif.gpu.unit_editing import UnitEdit, begins_of_units, hooks_times
from dptune.whatif.gpu.unit_issuing import Issuing, reduced_after, reduced_in_turn
from dptune.whatif.gpu.unit_reductions import UnitReduction


@dataclass
class _Pass:
    """Of a micro-batch of a step, by rank: gathers of its forward and backward pass in the order of use, reductions."""

    forward: dict[int, list[Gather]] = field(default_factory=lambda: defaultdict(list))
    backward: dict[int, list[Gather]] = field(default_factory=lambda: defaultdict(list))
    reductions: dict[int, list[UnitReduction]] = field(default_factory=lambda: defaultdict(list))


def parts_of_units(sizes: Mapping[str, int], count: int, root: str) -> dict[str, int]:
    """In how many parts each unit is split: the largest parts further, the root only where it is the only unit."""
    parts = dict.fromkeys(sizes, 1)
    split = [name for name in sizes if name != root or len(sizes) == 1]
    for _ in range(count - len(sizes)):
        parts[max(split, key=lambda name: sizes[name] / parts[name])] += 1
    return parts


def split(program: Program, parts: Mapping[str, int], side: Side, link: Link) -> Program:
    """Each unit in so many parts."""
    return _Splitting(program, parts, link).made(side)


@dataclass(frozen=True, eq=False)
class _Splitting:
    before: Program
    parts: Mapping[str, int]
    link: Link

    def made(self, side: Side) -> Program:
        """All passes of all ranks."""
        program, edit = self.before, UnitEdit.of(self.before)
        if program.shared:
            raise Missing(f"more units are not predicted when ranks share a GPU, {TAKING_TURNS}")
        self._without_turns(edit)
        items = PartOperations(edit, Additions.of(program, edit.edges), self.link)
        gathers, units = list[Gather](), list[UnitReduction]()
        for found in self._passes():
            borders = {rank: self._borders(found, rank) for rank in found.forward}
            earlier = self._gathered(items, found.forward, borders, {})
            units += self._reduced(items, found.reductions, borders)  # before the next part is copied out
            later = self._gathered(items, found.backward, borders, earlier)
            gathers += [gather for each in (*earlier.values(), *later.values()) for gather in each]
        items.followed()
        more = sum(self.parts.values()) / len(self.parts) - 1
        opposite = Side(Side.MOST - side)  # the more a unit takes, or a transfer beside compute, the less is saved
        share = program.unit_share.at(opposite) * more
        edit.spending({place: -share * spent for place, spent in program.spent_ns.get(Part.UNIT_HOOKS, {}).items()})
        return ordered(
            edit.program(
                **items.added.fields(),
                spent_ns=hooks_times(program, 1 + share),
                gathers=sorted(gathers, key=lambda gather: gather.call),
                unit_reductions=sorted(units, key=lambda unit: unit.call),
                unit_share=program.unit_share.without(-more),
                transfers=[*program.transfers, *items.transfers] if program.transfers else (),
                transfer_shares={**program.transfer_shares, **items.shares},
                transfer_times=SLOWED.at(opposite) if self._none_overlap() else program.transfer_times,
            )
        )

    def _without_turns(self, edit: UnitEdit) -> None:
        """Kernels that only began after a gather do not wait for it: its copies out do, and it may now be later."""
        program = self.before
        gathered = {end for gather in program.gathers if gather.copies for _, end in gather.operations}
        of_units = begins_of_units(program)
        for place in program.places((Kind.ORDER,)):
            kept = [edge for edge in edit.edges[place] if edge.item not in gathered]
            if place not in of_units and 0 < len(kept) < len(edit.edges[place]):
                edit.edges[place] = kept

    def _none_overlap(self) -> bool:
        """Whether too little of the recorded transfers overlaps compute to show how much longer they then take."""
        shares = self.before.transfer_shares.values()
        return self.before.transfer_times == 1.0 and median([*shares, 0.0]) <= ALONE

    def _passes(self) -> list[_Pass]:
        """Those that all ranks have alike. Raises Missing where they do not."""
        found: dict[tuple[int, int], _Pass] = defaultdict(_Pass)
        numbers = self.before.micro_batches
        for gather in sorted(self.before.gathers, key=lambda gather: gather.used_call):
            each = found[gather.step, numbers[gather.call] if numbers else 0]
            (each.backward if gather.backward else each.forward)[gather.rank].append(gather)
        for unit in sorted(self.before.unit_reductions, key=lambda unit: unit.call):
            found[unit.step, numbers[unit.call] if numbers else 0].reductions[unit.rank].append(unit)
        ranks = {gather.rank for gather in self.before.gathers}
        whole = [each for each in found.values() if each.forward.keys() == ranks]
        for each in whole:
            for by_rank in (each.forward, each.backward, each.reductions):
                names = {tuple(member.unit for member in members) for members in by_rank.values()}
                if len(names) > 1 or (by_rank and by_rank.keys() != ranks):
                    raise Missing("ranks gather and reduce units in different orders")
                if not {name for each_names in names for name in each_names} <= self.parts.keys():
                    raise Missing("a unit is not in every forward pass")
        return whole

    def _borders(self, found: _Pass, rank: int) -> _Borders:
        forward, backward = found.forward[rank], found.backward.get(rank, [])
        reductions = {unit.unit: unit for unit in found.reductions.get(rank, [])}
        calls = self._issuing.computing[rank]
        over = [gather.used_call for gather in backward]
        over += [unit.called[0] for unit in reductions.values() if unit.called]
        borders = _Borders({}, {})
        ends = [*(gather.used_call for gather in forward[1:]), min(over, default=calls[-1])]
        for gather, end in zip(forward, ends, strict=True):
            region = calls[bisect_left(calls, gather.used_call) : bisect_left(calls, end)]
            borders.forward[gather.unit] = _evenly(region, self.parts[gather.unit])
        for unit in reductions.values():
            borders.backward[unit.unit] = self._in_backward(unit, calls)
        used = self._used[rank]
        for gather in backward:
            if gather.unit not in reductions:  # a pass that reduces nothing does not show when gradients are ready
                after = bisect_right(used, gather.used_call)
                end = used[after] if after < len(used) else calls[-1]
                region = calls[bisect_left(calls, gather.used_call) : bisect_left(calls, end)]
                borders.backward[gather.unit] = [(0, call) for call in _evenly(region, self.parts[gather.unit])]
        return borders

    def _in_backward(self, unit: UnitReduction, calls: Sequence[int]) -> list[tuple[int, int]]:
        """By part but the last: how many gradients are ready by its end, and the first call after that."""
        parts, count = self.parts[unit.unit], len(unit.called)
        if parts > max(1, count):
            raise Missing(f"a unit of {count} tensors cannot be split into {parts} parts")
        found = []
        for part in range(1, parts):
            ready = count * part // parts
            after = bisect_right(calls, max(unit.called[:ready]))
            found.append((ready, calls[min(after, len(calls) - 1)]))
        return found

    @cached_property
    def _used(self) -> Mapping[int, Sequence[int]]:
        """By rank the calls before which what was gathered is copied out, in order."""
        found: dict[int, list[int]] = defaultdict(list)
        for gather in self.before.gathers:
            found[gather.rank].append(gather.used_call)
        return {rank: sorted(calls) for rank, calls in found.items()}

    @cached_property
    def _issuing(self) -> Issuing:
        return Issuing(UnitEdit.of(self.before))

    def _gathered(
        self,
        items: PartOperations,
        by_rank: Mapping[int, Sequence[Gather]],
        borders: Mapping[int, _Borders],
        earlier: Mapping[int, Sequence[Gather]],
    ) -> dict[int, list[Gather]]:
        """The gathers of the parts in a pass, by rank in the order of use."""
        found: dict[int, list[Gather]] = {rank: [] for rank in by_rank}
        for gathers in zip(*by_rank.values(), strict=True):
            unit, backward = gathers[0].unit, gathers[0].backward
            parts = self.parts[unit]
            alike = {gather.rank: gather for gather in gathers}
            begins = {
                rank: [call for _, call in borders[rank].backward.get(unit, [])]
                if backward
                else borders[rank].forward[unit]
                for rank in alike
            }
            if parts == 1 or any(len(each) < parts - 1 for each in begins.values()):
                for gather in gathers:
                    found[gather.rank].append(gather)
                continue
            for part in range(parts):
                calls = {rank: each[part - 1] for rank, each in begins.items()} if part else None
                for rank, gather in items.gathered(alike, calls, parts).items():
                    number = parts - 1 - part if backward else part
                    found[rank].append(replace(gather, unit=f"{unit} ({number + 1} of {parts})"))
        issuing = Issuing(items.edit)
        for rank, of_rank in found.items():
            recorded = by_rank[rank]
            if len(of_rank) > len(recorded):
                one_ahead = 1 if recorded[0].backward and len(recorded) == 1 else self._issuing.ahead(recorded)
                issuing.again(recorded, of_rank, earlier.get(rank, ()), one_ahead)
        return found

    def _reduced(
        self, items: PartOperations, by_rank: Mapping[int, Sequence[UnitReduction]], borders: Mapping[int, _Borders]
    ) -> Iterator[UnitReduction]:
        """The reductions of the parts in a backward pass."""
        found: dict[int, list[UnitReduction]] = {rank: [] for rank in by_rank}
        for units in zip(*by_rank.values(), strict=True):
            alike = {unit.rank: unit for unit in units}
            parts = self.parts[units[0].unit]
            ends = {rank: borders[rank].backward[unit.unit] for rank, unit in alike.items()}
            for part in range(parts):
                border = {rank: each[part] for rank, each in ends.items()} if part < parts - 1 else None
                since = {rank: each[part - 1][0] if part else 0 for rank, each in ends.items()}
                for rank, unit in items.reduced(alike, border, since, parts).items():
                    found[rank].append(
                        replace(unit, unit=f"{unit.unit} ({parts - part} of {parts})") if parts > 1 else unit
                    )
        for rank, reductions in found.items():
            in_turn = reduced_in_turn(self.before, by_rank[rank])
            for before, unit in pairwise(reductions):
                reduced_after(items.edit, before, unit, in_turn=in_turn)
            yield from reductions


@dataclass(frozen=True, eq=False)
class _Borders:
    """By unit: the calls with which its parts but the first begin in a forward pass, and borders of backward parts."""

    forward: dict[str, list[int]]
    backward: dict[str, list[tuple[int, int]]]


def _evenly(region: Sequence[int], parts: int) -> list[int]:
    """The calls with which the parts of a region begin, but the first; none where it is too short."""
    return [region[len(region) * part // parts] for part in range(1, parts)] if len(region) >= parts else []
