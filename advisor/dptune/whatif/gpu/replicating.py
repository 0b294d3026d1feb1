"""DistributedDataParallel in place of fully_shard in a program.

No unit is gathered. Gradients are copied into buckets, which are all-reduced in the order in which they become ready,
and back; each rank then updates all parameters. An all-reduce is a reduce-scatter and an all-gather: it takes as many
times what the link says as both of them did, and is slowed by compute as they were. Where the trace has no sizes of
gradients, those of a unit are taken to be of the same size, and the last bucket may be full, or hold the last gradient
only: it is the one that no compute hides.
Sources: torch 2.13, csrc/distributed/c10d/reducer.cpp, and nn/parallel/distributed.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import mean, median, quantiles

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.buckets import Caps, assign
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.additions import Additions
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.editing import lasting, times
from dptune.whatif.gpu.graph import Edge, Kind, Message
from dptune.whatif.gpu.links import SLOWED, known_link, slower
from dptune.whatif.gpu.merging import reductions_of, sizes_of_units
from dptune.whatif.gpu.ordering import ordered
from dptune.whatif.gpu.overlap import computing_shares, shares_of_messages
from dptune.whatif.gpu.parts import OUTSIDE, Part
from dptune.whatif.gpu.precision import SMALLEST_NS
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.reductions import Bucket, Reduction
from dptune.whatif.gpu.sharding import NO_UNITS
from dptune.whatif.gpu.unit_editing import NO_REDUCTIONS, UnitEdit, begins_of_units, calls_of_compute
from dptune.whatif.gpu.unit_reductions import UnitReduction

WHOLE = ("float", "float32", "fp32")
_QUARTILE = Assumed(2, 1, 0)  # of what collectives of a step took / what the link says: which of three quartiles
# What the host takes, in calls: its usual time from one call to the next. On an H200 (torch 2.11) copying a gradient
# into its bucket and back took 1.2 of these, issuing an all-reduce 6.3; in simulated runs 1.2 to 2.4, and 3.4 to 4.5.
_GRADIENT_CALLS, _BUCKET_CALLS = Assumed(2.4, 1.5, 0.6), Assumed(8.0, 5.0, 2.0)
_CALL_NS = 30e3  # where no call of a pass was recorded
# Of a gradient, each time it is copied: the smallest kernel and the gap before it. fully_shard copies a unit in one.
_COPY_NS = Assumed(5e3, 3e3, 1e3)
# Kernels of the optimizer beyond that of the smallest, for each byte / those of shards; what sharded tensors cost
# there: DTensor dispatches each operation in Python.
_UPDATE_TIMES = Assumed(1.1, 0.9, 0.6)
_UPDATING_TIMES = Assumed(1.0, 0.6, 0.3)
_COPIED_BACK = Assumed(1.5, 1.0, 0.5)  # copying gradients out of buckets / copying those of units in


def replicated(program: Program, value: Value, side: Side, caps: Caps) -> Program:
    """Each rank has the whole model; as it is where it has that already, or units where those are asked for."""
    if (value == "fsdp") == bool(program.gathers):
        if value != "fsdp" and not program.reductions:
            raise Missing(NO_UNITS)
        return program
    if value == "fsdp":
        raise Missing("a GPU trace without fully_shard does not show how long its units would take")
    if not program.unit_reductions:
        raise Missing(NO_REDUCTIONS)
    _check(program)
    return _Replicas(program, known_link(program), side, sizes_of_units(program)).made(caps)


def _check(program: Program) -> None:
    """Raise Missing where units do more than sharding: what that takes is not in the trace."""
    sent = [message for message in program.messages if message.kind == "all_gather"]
    if any(message.dtype not in WHOLE for message in sent):
        raise Missing("units are gathered in 16 bits: a GPU trace does not show how long their kernels take in fp32")
    if any(message.ranks not in (0, program.world_size) for message in sent):
        raise Missing("units are sharded within groups of ranks: a GPU trace does not show all-reduces among all ranks")


@dataclass(frozen=True, eq=False)
class _Replicas:
    """Of a program with units of these bytes."""

    before: Program
    link: Link
    side: Side
    sizes: Mapping[str, int]

    def made(self, caps: Caps) -> Program:
        """The program of the replicas."""
        program = self.before
        edit = UnitEdit.of(program)
        for gather in program.gathers:
            edit.without_gather(gather)
        for unit in program.unit_reductions:
            edit.without_reduction(unit)
            for number, (_, end) in enumerate(unit.operations[: unit.collective]):
                more_ns = 0.0 if number else (len(unit.ready) - 1) * _COPY_NS.at(self.side)
                edit.lasting(end, edit.took_ns(end) + more_ns)  # gradients are copied into buckets instead
        spared = dict(program.spent_ns.get(Part.UNIT_HOOKS, {}))
        items = _Items.of(edit)
        shares, slowed = self._beside_compute()
        level, reductions = self._level(shares, slowed), list[Reduction]()
        for units in self._passes():
            reductions.append(self._reduced(items, units, caps, level, spared))
        edit.spending(spared)
        whole = edit.program(
            **items.added.fields(),
            reductions=reductions,
            gathers=(),
            unit_reductions=(),
            transfers=(),
            transfer_times=slowed,
            transfer_shares={
                **shares,
                **dict.fromkeys(range(len(program.messages), len(items.added.messages)), 0.0),
            },
        )
        return ordered(self._updated(whole))

    def _passes(self) -> list[dict[int, list[UnitReduction]]]:
        """By rank the reductions of each backward pass that all ranks have alike."""
        passes: dict[tuple[int, int], dict[int, list[UnitReduction]]] = defaultdict(dict)
        for units in reductions_of(self.before):
            first = units[0]
            number = self.before.micro_batches[first.call] if self.before.micro_batches else 0
            passes[first.step, number][first.rank] = units
        ranks = {rank for by_rank in passes.values() for rank in by_rank}
        found = [by_rank for by_rank in passes.values() if by_rank.keys() == ranks]
        for by_rank in found:
            alike = {tuple((unit.unit, len(unit.ready)) for unit in units) for units in by_rank.values()}
            if len(alike) != 1 or not all(count for _, count in next(iter(alike))):
                raise Missing("the trace does not show when the gradients of each unit are ready on all ranks")
        return found

    def _beside_compute(self) -> tuple[Mapping[int, float], float]:
        """By message the share of a recorded transfer in which a rank computed; how many times as long it takes then.

        The latter is assumed where the trace does not show it.
        """
        program = self.before
        if program.transfer_shares or program.shared:
            return program.transfer_shares, program.transfer_times
        return shares_of_messages(program, computing_shares(program)), SLOWED.at(self.side)

    def _level(self, shares: Mapping[int, float], slowed: float) -> float:
        """What an all-reduce takes alone / what the link says: half of that of each of its two halves.

        The mean of a step counts, as its all-reduces add up: single collectives differ by more, for example where ranks
        share a GPU.
        """
        program, kinds = self.before, defaultdict[str, dict[int, list[float]]](lambda: defaultdict(list))
        edit = UnitEdit.of(program)
        alone = {end: transfer.alone for transfer in program.transfers for end in transfer.ends}
        ends = [(gather.step, gather.operations[-1][1]) for gather in program.gathers]
        ends += [(unit.step, unit.end) for unit in program.unit_reductions]
        for step, end in ends:
            message = edit.message(end)
            share = max(shares.get(edge.message, 0.0) for edge in program.edges[end])
            took_ns = edit.took_ns(end) * alone.get(end, 1.0) / slower(share, slowed)
            kinds[message.kind][step].append(took_ns / self.link.alone_ns(message.message_bytes))
        quartile = int(_QUARTILE.at(self.side))
        means = [[mean(took) for took in steps.values()] for steps in kinds.values()]
        return sum(quantiles(took, n=4)[quartile] if len(took) > 1 else took[0] for took in means)

    def _reduced(
        self,
        items: _Items,
        by_rank: Mapping[int, Sequence[UnitReduction]],
        caps: Caps,
        level: float,
        spared: dict[int, float],
    ) -> Reduction:
        """The buckets of a backward pass, and what waits for them."""
        units = next(iter(by_rank.values()))
        sizes = tuple(size for unit in units for size in self._sizes(unit))
        ready = {rank: tuple(place for unit in each for place in unit.ready) for rank, each in by_rank.items()}
        called = {rank: tuple(place for unit in each for place in unit.called) for rank, each in by_rank.items()}
        buckets, sent = list[Bucket](), dict[int, tuple[int, int]]()
        for gradients in self._buckets(sizes, caps, units):
            size = sum(sizes[gradient] for gradient in gradients)
            message, took_ns = Message("all_reduce", size, "float", len(by_rank)), level * self.link.alone_ns(size)
            waits = self._waits(ready, called, max(gradients), buckets[-1] if buckets else None)
            added = items.added.collective(message, took_ns, waits)
            buckets.append(Bucket(max(gradients), added.message, added.begins, added.ends))
            sent[added.message] = size, len(gradients)
        for rank, places in called.items():
            for place in places:
                spared[place] = spared.get(place, 0.0) - self._host_ns(_GRADIENT_CALLS)
            for bucket in buckets:
                spared[places[bucket.last]] -= self._host_ns(_BUCKET_CALLS)
            self._awaited(items, by_rank[rank], [(bucket.ends[rank], *sent[bucket.message]) for bucket in buckets])
        return Reduction(units[0].step, sizes, ready, called, tuple(buckets))

    def _elements(self, unit: UnitReduction) -> tuple[int, ...]:
        """Of each gradient of a unit; empty if not known."""
        elements = self.before.unit_gradients.get(unit.unit, ())
        return elements if len(elements) == len(unit.ready) else ()

    def _sizes(self, unit: UnitReduction) -> list[int]:
        """The bytes of each gradient of a unit."""
        parts, whole = self._elements(unit) or (1,) * len(unit.ready), self.sizes.get(unit.unit, 0)
        return [round(whole * part / sum(parts)) for part in parts]

    def _buckets(self, sizes: Sequence[int], caps: Caps, units: Sequence[UnitReduction]) -> list[list[int]]:
        """The places of the gradients of each bucket; both ends of what the last may hold where sizes are unknown."""
        if self.side == Side.MIDDLE or all(map(self._elements, units)):
            return assign(sizes, caps)
        last = len(sizes) - 1
        if self.side == Side.MOST:
            return [*assign(sizes[:last], caps), [last]]
        full = assign(sizes[::-1], Caps(caps.bytes[-1:]))
        return [[last - place for place in bucket[::-1]] for bucket in full[::-1]]

    def _host_ns(self, calls: Assumed) -> float:
        return self.before.added_times * calls.at(self.side) * self._call_ns

    @cached_property
    def _call_ns(self) -> float:
        """The median time of the host from one call of a pass to the next, outside of hooks of fully_shard."""
        program, hooks = self.before, self.before.spent_ns.get(Part.UNIT_HOOKS, {})
        numbers = program.micro_batches or [0] * len(program.edges)
        places = [place for place in program.places((Kind.HOST,)) if numbers[place] != OUTSIDE and place not in hooks]
        lags = [edge.lag_ns for place in places for edge in program.edges[place] if edge.kind == Kind.HOST]
        return median(lags) if lags else _CALL_NS

    def _waits(
        self,
        ready: Mapping[int, Sequence[int]],
        called: Mapping[int, Sequence[int]],
        last: int,
        before: Bucket | None,
    ) -> dict[int, list[Edge]]:
        """By rank what the all-reduce of a bucket waits for, after the one before it."""
        found: dict[int, list[Edge]] = {}
        for rank, places in ready.items():
            found[rank] = [
                Edge(places[last], 0.0, Kind.ORDER),
                Edge(called[rank][last], self._host_ns(_BUCKET_CALLS), Kind.LAUNCH),
            ]
            if before is not None:
                found[rank].append(Edge(before.ends[rank], 0.0, Kind.ORDER))
        return found

    def _awaited(self, items: _Items, units: Sequence[UnitReduction], buckets: Sequence[tuple[int, int, int]]) -> None:
        """What waited for reductions waits until all gradients are copied back, bucket by bucket after the pass.

        `buckets`: the places of their ends, their bytes, and how many gradients each holds.
        """
        program, edges = self.before, items.edit.edges
        copied_ns = sum(items.edit.took_ns(place) for unit in units for _, place in unit.operations[: unit.collective])
        byte_ns = _COPIED_BACK.at(self.side) * copied_ns / max(1, sum(size for _, size, _ in buckets))
        took_ns = [size * byte_ns + count * _COPY_NS.at(self.side) for _, size, count in buckets]
        left_ns = [*accumulate(reversed(took_ns))]
        back = [Edge(end, left, Kind.ORDER) for (end, *_), left in zip(reversed(buckets), left_ns, strict=True)]
        back.append(Edge(units[-1].ready[-1], left_ns[-1], Kind.ORDER))
        reduced = {place for unit in units for _, place in unit.operations[unit.collective :]}
        rank, after = units[-1].rank, units[-1].calls[-1]
        waiting = [place for place in items.waiting[rank] if any(edge.item in reduced for edge in program.edges[place])]
        for place in waiting:
            edges[place] = [edge for edge in edges[place] if edge.item not in reduced]
        following = [place for place in items.computing[rank] if items.call[place] > after][:1]
        for place in {*following, *(place for place in waiting if items.call.get(place, 0) > after)}:
            edges[place] = [*edges[place], *back]

    def _updated(self, program: Program) -> Program:
        """Each rank updates what all of them did, by whole tensors."""
        factor = program.world_size * _UPDATE_TIMES.at(self.side)

        def of(lag_ns: float) -> float:
            least_ns = min(lag_ns, SMALLEST_NS)
            return least_ns + factor * (lag_ns - least_ns)

        return times(lasting(program, (Kind.UPDATE,), of), (Kind.UPDATING,), _UPDATING_TIMES.at(self.side))


@dataclass(frozen=True, eq=False)
class _Items:
    """Items that are added to an edit; by rank the begins that wait for operations, and those of kernels, in order.

    `call`: by such a begin the place of the call that launches it. Those of fully_shard are none of them.
    """

    edit: UnitEdit
    added: Additions
    waiting: Mapping[int, Sequence[int]]
    computing: Mapping[int, Sequence[int]]
    call: Mapping[int, int]

    @classmethod
    def of(cls, edit: UnitEdit) -> _Items:
        """None are added yet."""
        program = edit.before
        of_units = begins_of_units(program)
        waiting: dict[int, list[int]] = defaultdict(list)
        for place in program.places((Kind.ORDER,)):
            if place not in of_units:
                waiting[program.ranks[place]].append(place)
        compute = calls_of_compute(program)
        computing: dict[int, list[int]] = defaultdict(list)
        for place in sorted(compute, key=compute.__getitem__):
            computing[program.ranks[place]].append(place)
        launched = ((place, edge) for places in waiting.values() for place in places for edge in program.edges[place])
        call = {place: edge.item for place, edge in launched if edge.kind == Kind.LAUNCH}
        return cls(edit, Additions.of(program, edit.edges), waiting, computing, {**call, **compute})
