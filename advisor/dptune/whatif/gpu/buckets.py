"""Changes of DDP's buckets in a program: others, and passes that reduce nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, sqrt
from statistics import mean, median, pstdev

from dptune.measured import Missing
from dptune.whatif.cpu.buckets import Caps, assign
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.additions import Additions
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.editing import requeued, spared
from dptune.whatif.gpu.graph import OF_HOST, Edge, Kind, Message
from dptune.whatif.gpu.links import ALONE, BESIDE, SLOWED, slower
from dptune.whatif.gpu.ordering import ordered
from dptune.whatif.gpu.overlap import computing_shares
from dptune.whatif.gpu.parts import Part
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.reductions import Bucket, Reduction

_CHANCE = Assumed(1.0, 0.0, -1.0)  # of how far collectives are off by chance
_NORMAL_90 = 1.645  # two-sided

OUT_OF_ORDER = (
    "the recorded buckets order gradients differently from how they become ready, as with find_unused_parameters: the "
    "trace does not show which ones other buckets would hold"
)
NO_REDUCER = "the trace does not show when DDP's gradients are ready and which all-reduces they are in on all ranks"


def rebucketed(program: Program, caps: Caps, side: Side) -> Program:
    """The program whose gradients are reduced in buckets that are closed at these sizes.

    New collectives take longer or less by chance, as the recorded ones do from step to step, and are slower while their
    rank computes.
    """
    if not program.reductions:
        raise Missing(NO_REDUCER)
    if not all(reduction.in_order for reduction in program.reductions):
        raise Missing(OUT_OF_ORDER)
    if program.link is None:
        raise Missing("latency and bandwidth of all-reduces are unknown: measure them with `dptune links`")
    edit = _Edit.of(program)
    found, off = [], _CHANCE.at(side) * _unlike(program)
    shares, slowed = _slowed(program, program.link, side)
    for reduction in program.reductions:
        buckets = assign(reduction.gradient_bytes, caps)
        if [max(bucket) for bucket in buckets] == [bucket.last for bucket in reduction.buckets]:
            found.append(reduction)
        else:
            found.append(edit.replaced(reduction, buckets, program.link, shares, slowed, off))
    return edit.program(found) if edit.redirected else program


def silenced(program: Program) -> Program:
    """The program in which of all backward passes of a step only the last reduces gradients."""
    if not program.reductions:
        raise Missing(NO_REDUCER)
    by_step: dict[int, list[Reduction]] = defaultdict(list)
    for reduction in program.reductions:
        by_step[reduction.step].append(reduction)
    return _without(program, [reduction for passes in by_step.values() for reduction in passes[:-1]])


def without_reductions(program: Program, gone: Callable[[int], bool]) -> Program:
    """The program in which the passes of some micro-batches reduce no gradients."""
    numbers = program.micro_batches
    return _without(
        program,
        [reduction for reduction in program.reductions if gone(numbers[min(map(min, reduction.ready.values()))])],
    )


def _without(program: Program, silent: Sequence[Reduction]) -> Program:
    edit = _Edit.of(requeued(program, _launches(program, silent)))
    for reduction in silent:
        edit.removed(reduction)
    kept = [reduction for reduction in program.reductions if reduction not in silent]
    return edit.program(kept) if silent else program


def _launches(program: Program, silent: Sequence[Reduction]) -> set[int]:
    """The places of the calls that launch the collectives of reductions and the kernels that copy gradients."""
    moves = {edge.item for each in silent for end in each.moves for edge in program.edges[end]}
    begins = {begin for each in silent for bucket in each.buckets for begin in bucket.begins.values()} | moves
    return {edge.item for begin in begins for edge in program.edges[begin] if edge.kind == Kind.LAUNCH}


def _unlike(program: Program) -> float:
    """90 % of what the mean duration of a collective over the recorded reductions is off by, as a share of it."""
    took: dict[int, list[float]] = defaultdict(list)
    for reduction in program.reductions:
        for bucket in reduction.buckets:
            took[bucket.last].append(_took_ns(program.edges, bucket))
    shares = [duration / mean(each) for each in took.values() if len(each) > 1 and mean(each) for duration in each]
    return _NORMAL_90 * pstdev(shares) / sqrt(len(program.reductions)) if shares else 0.0


def _took_ns(edges: Sequence[Sequence[Edge]], bucket: Bucket) -> float:
    """From the last rank's begin."""
    (place, *_) = bucket.ends.values()
    return next((edge.lag_ns for edge in edges[place] if edge.kind == Kind.COLLECTIVE), 0.0)


def _slowed(program: Program, link: Link, side: Side) -> tuple[dict[int, float], float]:
    """By end of a collective the part in which its rank computed, and how many times as long that takes.

    Assumed where the recording does not show collectives beside compute and others.
    """
    if program.shared:
        return {}, 1.0
    shares = computing_shares(program)
    alone, beside = [], []
    for reduction in program.reductions:
        for bucket in reduction.buckets:
            took_ns, share = _took_ns(program.edges, bucket), _share(bucket, shares)
            said_ns = link.alone_ns(program.messages[bucket.message].message_bytes)
            if took_ns and said_ns and share <= ALONE:
                alone.append(took_ns / said_ns)
            elif took_ns and said_ns and share >= BESIDE:
                beside.append(took_ns / said_ns)
    if not alone or not beside:
        return shares, SLOWED.at(side)
    return shares, min(SLOWED.most, max(1.0, median(beside) / median(alone)))


def _share(bucket: Bucket, shares: Mapping[int, float]) -> float:
    return mean(shares.get(place, 0.0) for place in bucket.ends.values())


@dataclass(frozen=True)
class _Redirected:
    """The item that stands for one of a collective that is gone; None where nothing does. `since`: only for those that
    wait for it from that place on, as what a backward pass computes waits for no bucket.
    """

    item: int | None
    since: int


@dataclass(frozen=True, eq=False)
class _Edit:
    """Items and edges that grow, and by place what stands for an item that is gone."""

    before: Program
    items: Additions
    redirected: dict[int, _Redirected]

    @classmethod
    def of(cls, program: Program) -> _Edit:
        return cls(program, Additions.of(program), {})

    @property
    def edges(self) -> list[Sequence[Edge]]:
        return self.items.edges

    def removed(self, reduction: Reduction) -> None:
        """Nothing is reduced, nor copied into buckets and back; the host takes no time for either.

        What followed a copy follows what came before it, after one gap instead of two.
        """
        for bucket in reduction.buckets:
            self._without(bucket, {}, {}, {})
        for begin in {edge.item for end in reduction.moves for edge in self.edges[end]}:
            self.edges[begin] = [edge.lasting(0.0) if edge.kind == Kind.ORDER else edge for edge in self.edges[begin]]
        spent_ns = self._spent_ns(reduction)
        for place in (*reduction.moves, *(() if spent_ns else reduction.calls)):
            self.edges[place] = [edge.lasting(0.0) for edge in self.edges[place]]
        for place, edges in spared(self.edges, spent_ns).items():
            self.edges[place] = edges

    def _spent_ns(self, reduction: Reduction) -> dict[int, float]:
        """By place, what hosts spend on a reduction; empty if the trace has no ranges of it."""
        spans: dict[int, tuple[int, int]] = {}
        for place in reduction.calls:
            rank = self.before.ranks[place]
            first, last = spans.get(rank, (place, place))
            spans[rank] = min(first, place), max(last, place)
        return {
            place: spent
            for rank, (first, last) in spans.items()
            for place, spent in _between(self._spent.get(rank, []), first, last)
        }

    @cached_property
    def _spent(self) -> dict[int, list[tuple[int, float]]]:
        """By rank: the places of its host's items in order, and what the host spent on reductions before them."""
        found: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for place, spent in sorted(self.before.spent_ns.get(Part.REDUCING, {}).items()):
            found[self.before.ranks[place]].append((place, spent))
        return found

    def replaced(
        self,
        reduction: Reduction,
        buckets: Sequence[Sequence[int]],
        link: Link,
        shares: Mapping[int, float],
        slowed: float,
        off: float,
    ) -> Reduction:
        """Other collectives of the same gradients, which take as many times what the link says as the recorded did.

        `shares`: by end the part of a recorded one in which its rank computed, which takes `slowed` times as long.
        `off`: by what share a collective is longer by chance, or was shorter when recorded, if there is one per
        reduction; less if there are more.
        """
        recorded_ns = sum(
            _took_ns(self.edges, bucket) / slower(_share(bucket, shares), slowed) for bucket in reduction.buckets
        )
        said_ns = sum(link.alone_ns(self.before.messages[bucket.message].message_bytes) for bucket in reduction.buckets)
        sample = self.before.messages[reduction.buckets[0].message]
        sent = sum(self.before.messages[bucket.message].message_bytes for bucket in reduction.buckets)
        share = sent / max(1, sum(reduction.gradient_bytes))  # less than 1 where a hook compresses
        found: list[Bucket] = []
        sizes = [share * sum(reduction.gradient_bytes[gradient] for gradient in gradients) for gradients in buckets]
        before = [self.before.messages[bucket.message].message_bytes for bucket in reduction.buckets]
        by_chance = off * hypot(_unevenness(sizes), _unevenness(before))
        level = (1 + by_chance) * recorded_ns / said_ns if said_ns else 0.0
        (_, ready), freed_ns = next(iter(reduction.ready.items())), 0.0
        for gradients, size in zip(buckets, sizes, strict=True):
            start_ns = max(self.before.recorded_ns[ready[max(gradients)]], freed_ns)
            alone_ns = link.alone_ns(size) * level
            beside_ns = max(0.0, self.before.recorded_ns[ready[-1]] - start_ns)
            took_ns = alone_ns * slower(min(1.0, beside_ns / max(1.0, alone_ns)), slowed)
            freed_ns = start_ns + took_ns
            message = replace(sample, kind="all_reduce", message_bytes=round(size))
            found.append(self._bucket(reduction, max(gradients), message, took_ns, found[-1] if found else None))
        over = {rank: max(places) for rank, places in reduction.ready.items()}
        for bucket in reduction.buckets:
            instead = next(other for other in found if other.last >= bucket.last)
            self._without(bucket, instead.begins, instead.ends, over)
        copies = self._copies(reduction)
        for rank in reduction.ready:
            self._copied_back(reduction, found, rank, copies[rank])
            self._issued(reduction, found, rank)
        return replace(reduction, buckets=tuple(found))

    def _issued(self, reduction: Reduction, buckets: Sequence[Bucket], rank: int) -> None:
        """The host spends on each new collective what it spent on a recorded one, after the preceding call.

        At the end of the pass it waits for each.
        """
        spent_ns = self.before.spent_ns.get(Part.ISSUING, {})
        issuing = [
            edge.item
            for bucket in reduction.buckets
            for edge in self.before.edges[bucket.begins[rank]]
            if edge.kind == Kind.LAUNCH
        ]
        both = [(place, self._next.get(place, place)) for place in issuing]  # a range ends after its call
        times = self.before.added_times
        spent = {place: times * spent_ns.get(place, 0.0) for pair in both for place in pair}
        each = [sum(spent[place] for place in {*pair}) for pair in both]
        if len(issuing) != len(reduction.buckets) or not all(each):
            return
        each_ns = median(each)
        for place, edges in spared(self.edges, spent).items():
            self.edges[place] = edges
        for bucket in buckets:
            after = self._next.get(reduction.called[rank][bucket.last])
            if after is not None:
                self.edges[after] = spared(self.edges, {after: -each_ns})[after]
        after = self._next.get(max(issuing))
        if after is not None:
            more_ns = (len(buckets) - len(reduction.buckets)) * self.before.spent_ns.get(Part.AWAITING, {}).get(
                after, 0.0
            )
            self.edges[after] = spared(self.edges, {after: -times * more_ns})[after]

    @cached_property
    def _next(self) -> dict[int, int]:
        """By place of a host item, the place of the next one of its rank."""
        edges = self.before.edges
        places = self.before.places(OF_HOST)
        return {edge.item: place for place in places for edge in edges[place] if edge.kind in OF_HOST}

    def _copies(self, reduction: Reduction) -> dict[int, list[int]]:
        """By rank: the places of the copies of averaged gradients out of buckets, in order."""
        copy, found = int(Part.BUCKET_COPY), defaultdict[int, list[int]](list)
        for place in sorted(reduction.moves):
            if self.before.parts[place] & copy:
                found[self.before.ranks[place]].append(place)
        return found

    def _copied_back(self, reduction: Reduction, buckets: Sequence[Bucket], rank: int, copies: Sequence[int]) -> None:
        """The reducer waits for the buckets in turn, and copies each one's gradients out before the next wait."""
        if len(copies) != len(reduction.gradient_bytes):
            return
        begins = [min(edge.item for edge in self.edges[place]) for place in copies]
        ends = {bucket.ends[rank] for bucket in reduction.buckets}
        for begin in begins:
            self.edges[begin] = [edge for edge in self.edges[begin] if edge.item not in ends]
        firsts = [0, *(bucket.last + 1 for bucket in buckets)]
        for first, bucket in zip(firsts, buckets, strict=False):
            self.edges[begins[first]] = [*self.edges[begins[first]], Edge(bucket.ends[rank], 0.0, Kind.ORDER)]

    def program(self, reductions: Sequence[Reduction]) -> Program:
        """The program after the edit."""
        gone, edges = self.redirected, [*self.edges]
        for place in {place for place, each in enumerate(edges) for edge in each if edge.item in gone}:
            edges[place] = [new for edge in edges[place] if (new := self._redirect(place, edge))]
        steps = [
            replace(step, first=self._instead(step.first), last=self._instead(step.last)) for step in self.before.steps
        ]
        return ordered(replace(self.before, **self.items.fields(), edges=edges, steps=steps, reductions=reductions))

    def _bucket(
        self, reduction: Reduction, last: int, message: Message, took_ns: float, before: Bucket | None
    ) -> Bucket:
        """The items of a collective whose last gradient is of that number, after the one before it."""
        waits: dict[int, list[Edge]] = {}
        for rank, ready in reduction.ready.items():
            waits[rank] = [
                Edge(ready[last], 0.0, Kind.ORDER),
                Edge(reduction.called[rank][last], self._launching_ns(reduction, rank), Kind.LAUNCH),
            ]
            if before is not None:
                waits[rank].append(Edge(before.ends[rank], 0.0, Kind.ORDER))
        added = self.items.collective(message, took_ns, waits)
        return Bucket(last, added.message, added.begins, added.ends)

    def _launching_ns(self, reduction: Reduction, rank: int) -> float:
        """From the launch of the kernel that makes a bucket's last gradient ready to the begin of a free collective.

        Not what the collective waits for then: the kernel, or the bucket before it. Where ranks share a GPU all of that
        counts: kernels and collectives take turns, and on an H200 smaller buckets saved nothing.
        """
        called, recorded_ns, found = reduction.called[rank], self.before.recorded_ns, []
        for bucket in reduction.buckets:
            begin, launched = bucket.begins[rank], called[bucket.last]
            launch = next((edge for edge in self.before.edges[begin] if edge.kind == Kind.LAUNCH), None)
            if launch is None or self.before.shared:
                found.append(float(recorded_ns[begin] - recorded_ns[launched]))
            else:
                found.append(recorded_ns[launch.item] - recorded_ns[launched] + launch.lag_ns)
        return min(found)

    def _without(
        self, bucket: Bucket, begins: Mapping[int, int], ends: Mapping[int, int], over: Mapping[int, int]
    ) -> None:
        """The items of a collective hold up nothing any more: those of another stand for them, from a place on."""
        for gone, instead in ((bucket.begins, begins), (bucket.ends, ends)):
            for rank, place in gone.items():
                self.redirected[place] = _Redirected(instead.get(rank), over.get(rank, 0))
                self.edges[place] = [edge for edge in self.edges[place] if edge.kind == Kind.LAUNCH]

    def _redirect(self, place: int, edge: Edge) -> Edge | None:
        redirected = self.redirected.get(edge.item)
        if redirected is None:
            return edge
        if redirected.item is None or place < redirected.since or edge.kind == Kind.QUEUE:
            return None
        return Edge(redirected.item, edge.lag_ns, edge.kind, edge.message)

    def _instead(self, place: int) -> int:
        redirected = self.redirected.get(place)
        return place if redirected is None or redirected.item is None else redirected.item


def _unevenness(sizes: Sequence[float]) -> float:
    """1 for one size, less the more there are: the share of independent errors that remains in their sum."""
    return hypot(*sizes) / max(1.0, sum(sizes))


def _between(spent: Sequence[tuple[int, float]], first: int, last: int) -> Sequence[tuple[int, float]]:
    """The entries of places from `first` to `last`."""
    return spent[bisect_left(spent, (first, 0.0)) : bisect_left(spent, (last + 1, 0.0))]
