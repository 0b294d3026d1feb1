"""Operations of the parts of a unit of fully_shard: gathers, copies out and reductions, each of a part of the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.additions import Added, Additions
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import COMPUTING, Edge, Kind, Message
from dptune.whatif.gpu.precision import SMALLEST_NS
from dptune.whatif.gpu.sharing import Transfer
from dptune.whatif.gpu.unit_editing import UnitEdit, calls_of_compute
from dptune.whatif.gpu.unit_reductions import UnitReduction

Span = tuple[int, int]  # the places of a begin and an end


@dataclass(frozen=True, eq=False)
class PartOperations:
    """Operations of parts: the first or the last keeps the items of the whole, the others are added.

    `tails`: by begin of a kernel what was added just before it on its stream: the end of the last of these.
    """

    edit: UnitEdit
    added: Additions
    link: Link
    tails: dict[int, int] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)
    shares: dict[int, float] = field(default_factory=dict)

    @cached_property
    def _begins(self) -> dict[int, int]:
        """By call the begin of the kernel that it launches."""
        return {call: begin for begin, call in calls_of_compute(self.edit.before).items()}

    @cached_property
    def _before(self) -> dict[int, int]:
        """By begin of a kernel the end of the kernel before it, of those of its rank in order of launching."""
        program, found = self.edit.before, dict[int, int]()
        ends = {edge.item: place for place in program.places(COMPUTING) for edge in program.edges[place]}
        last: dict[int, int] = {}
        for _, begin in sorted(self._begins.items()):
            rank = program.ranks[begin]
            if rank in last:
                found[begin] = ends[last[rank]]
            last[rank] = begin
        return found

    def followed(self) -> None:
        """Kernels wait for what was added just before them on their stream."""
        for begin, end in self.tails.items():
            self.edit.edges[begin] = [*self.edit.edges[begin], Edge(end, 0.0, Kind.ORDER)]

    def gathered(self, wholes: Mapping[int, Gather], calls: Mapping[int, int] | None, parts: int) -> dict[int, Gather]:
        """The gather of one part, by rank: as it is launched in the whole, or before these calls."""
        if calls is None:
            for gather in wholes.values():
                for _, end in (*gather.operations[:-1], *gather.copies):
                    self._shortened(end, parts)
            self._communicated([gather.operations[-1][1] for gather in wholes.values()], parts)
            return dict(wholes)
        operations: dict[int, list[Span]] = {}
        for rank, gather in wholes.items():
            operations[rank] = [
                self._operation(rank, span, [self._launch(calls[rank], span)], parts) for span in gather.operations[:-1]
            ]
        added = self._collective(
            {rank: gather.operations[-1] for rank, gather in wholes.items()},
            {
                rank: [*_over(spans), self._launch(calls[rank], wholes[rank].operations[-1])]
                for rank, spans in operations.items()
            },
            parts,
        )
        found: dict[int, Gather] = {}
        for rank, gather in wholes.items():
            end = added.ends[rank]
            copies = [self._inserted(rank, span, calls[rank], parts, end) for span in gather.copies]
            found[rank] = replace(
                gather,
                operations=(*operations[rank], (added.begins[rank], end)),
                call=calls[rank],
                used_call=calls[rank],
                used_end=copies[-1][1] if copies else end,
                copies=tuple(copies),
            )
        return found

    def reduced(
        self,
        wholes: Mapping[int, UnitReduction],
        borders: Mapping[int, tuple[int, int]] | None,
        since: Mapping[int, int],
        parts: int,
    ) -> dict[int, UnitReduction]:
        """The reduction of the gradients from `since` to a border, by rank; to the last, where there is none."""
        if borders is None:
            for unit in wholes.values():
                for number, (_, end) in enumerate(unit.operations):
                    if number != unit.collective and parts > 1:
                        self._shortened(end, parts)
            if parts > 1:
                self._communicated([unit.end for unit in wholes.values()], parts)
            return {
                rank: replace(unit, ready=unit.ready[since[rank] :], called=unit.called[since[rank] :])
                for rank, unit in wholes.items()
            }
        copied: dict[int, list[Span]] = {}
        for rank, unit in wholes.items():
            ready, call = borders[rank]
            last = max(unit.ready[since[rank] : ready])
            copied[rank] = [
                self._inserted(rank, span, call, parts, last) for span in unit.operations[: unit.collective]
            ]
        added = self._collective(
            {rank: unit.operations[unit.collective] for rank, unit in wholes.items()},
            {
                rank: [*_over(spans), self._launch(borders[rank][1], wholes[rank].operations[wholes[rank].collective])]
                for rank, spans in copied.items()
            },
            parts,
        )
        found: dict[int, UnitReduction] = {}
        for rank, unit in wholes.items():
            ready, call = borders[rank]
            after, end = list[Span](), added.ends[rank]
            for span in unit.operations[unit.collective + 1 :]:
                after.append(self._operation(rank, span, [self._launch(call, span), Edge(end, 0.0, Kind.ORDER)], parts))
                end = after[-1][1]
            found[rank] = replace(
                unit,
                operations=(*copied[rank], (added.begins[rank], added.ends[rank]), *after),
                calls=(call,),
                ready=unit.ready[since[rank] : ready],
                called=unit.called[since[rank] : ready],
            )
        return found

    def _part_ns(self, end: int, parts: int) -> float:
        """What an operation takes for one part: no less than the smallest kernel."""
        took_ns = self.edit.took_ns(end)
        return (took_ns + (parts - 1) * min(SMALLEST_NS, took_ns)) / parts

    def _shortened(self, end: int, parts: int) -> None:
        self.edit.lasting(end, self._part_ns(end, parts))

    def _communicated(self, ends: Sequence[int], parts: int) -> None:
        """The collective of the whole is that of a part."""
        for end in ends:
            message = self.edit.message(end)
            number = next(edge.message for edge in self.edit.before.edges[end] if edge.kind == Kind.COLLECTIVE)
            self.edit.lasting(end, self._collective_ns(end, message, parts))
            self.added.messages[number] = replace(message, message_bytes=message.message_bytes // parts)

    def _collective_ns(self, end: int, message: Message, parts: int) -> float:
        whole = self.link.alone_ns(message.message_bytes)
        return self.edit.took_ns(end) * self.link.alone_ns(message.message_bytes / parts) / whole if whole else 0.0

    def _collective(self, spans: Mapping[int, Span], waits: Mapping[int, Sequence[Edge]], parts: int) -> Added:
        """One more collective of a part of what that of these begins and ends sends."""
        program, (_, end) = self.edit.before, next(iter(spans.values()))
        message = self.edit.message(end)
        part = replace(message, message_bytes=message.message_bytes // parts)
        likes = {rank: begin for rank, (begin, _) in spans.items()}
        added = self.added.collective(part, self._collective_ns(end, message, parts), waits, likes)
        number = next(edge.message for edge in program.edges[end] if edge.kind == Kind.COLLECTIVE)
        self.shares[added.message] = program.transfer_shares.get(number, 0.0)
        alone = next((transfer.alone for transfer in program.transfers if end in transfer.ends), 1.0)
        begins, ends = (tuple(each.values()) for each in (added.begins, added.ends))
        self.transfers.append(Transfer(begins, ends, frozenset(spans), alone))
        return added

    def _operation(self, rank: int, like: Span, waits: Sequence[Edge], parts: int) -> Span:
        """One more operation, as that of these places."""
        begin = self.added.item(rank, waits, like[0])
        kind = next((edge.kind for edge in self.edit.before.edges[like[1]]), Kind.COMPUTE)
        return begin, self.added.item(rank, [Edge(begin, self._part_ns(like[1], parts), kind)], like[1])

    def _inserted(self, rank: int, like: Span, call: int, parts: int, awaited: int) -> Span:
        """The same on the stream of kernels, before the kernel that a call launches, and after something else."""
        kernel = self._begins[call]
        before = self.tails.get(kernel, self._before.get(kernel))
        waits = [self._launch(call, like), Edge(awaited, 0.0, Kind.ORDER)]
        if before is not None:
            waits.append(Edge(before, 0.0, Kind.ORDER))
        span = self._operation(rank, like, waits, parts)
        self.tails[kernel] = span[1]
        return span

    def _launch(self, call: int, like: Span) -> Edge:
        """Launched by a call as the operation of these places is by its own."""
        launches = (edge.lag_ns for edge in self.edit.before.edges[like[0]] if edge.kind == Kind.LAUNCH)
        return Edge(call, min(launches, default=0.0), Kind.LAUNCH)


def _over(spans: Sequence[Span]) -> list[Edge]:
    """A wait for the last of these."""
    return [Edge(spans[-1][1], 0.0, Kind.ORDER)] if spans else []
