"""The traces of a run -> its program.

What an operation waited for last is found as for the critical path; that it has to wait for the operation before it on
its stream, and for its launch, it is given too, as early as that could have been. The threads of the script are taken
for one, which does one thing after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from dptune.measure.across_ranks import Across
from dptune.measure.communication.matching import Exchange
from dptune.measure.device.critical import Walk
from dptune.measure.device.kernel_kinds import OTHER, kernel_kind
from dptune.measure.device.precisions import is_fp32, is_tensor_core
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.queue import DEPTH, Launches
from dptune.measure.intervals import Intervals
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.trace.kernels import OPTIMIZER_STEP_NAME, RANGE_CATEGORIES
from dptune.whatif.cpu.wire import Link
from dptune.whatif.gpu.gathers import gathers
from dptune.whatif.gpu.optimizing import implementation_of
from dptune.whatif.gpu.parts import OUTSIDE, HostParts, Part
from dptune.whatif.gpu.program import OF_HOST, Edge, Kind, Message, Program, Stretch
from dptune.whatif.gpu.reductions import Matched, reductions
from dptune.whatif.gpu.sharing import transfers
from dptune.whatif.gpu.streams import across_streams

MOST = 2_000_000  # operations: beyond, a replay takes minutes
_PRODUCTS = frozenset({"matrix product", "convolution", "attention", "fused by triton", OTHER})
_UPLOAD = re.compile(r"Memcpy HtoD \(Pageable")
_NOTHING = -1
_RETURNS_FIRST = {"held": 0, "given": 1, "updating": 2, "call": 3, "asked": 4}  # of moments of the host at one time
_END, _HOST, _BEGIN, _FREED = range(4)  # of items of one moment, in this order; the last: a full queue has room


@dataclass
class _Item:
    """One item before all are in order: when, of what sort, and the keys of what it waits for."""

    at: int
    sort: int
    key: tuple[int, str, int]
    waits: list[tuple[tuple[int, str, int], float, Kind, int]] = field(default_factory=list)
    micro_batch: int = OUTSIDE
    part: int = Part.NONE


def build(
    views: Sequence[RankView],
    across: Across,
    link: Link | None,
    world_size: int,
    samples: float | None = None,
    batch: int | None = None,
    ddp: DdpFacts | None = None,
) -> Program:
    """The program of all steps of all ranks. Raises Missing where the traces do not tell enough."""
    devices = {
        rank_view.rank: max(rank_view.devices, key=lambda device_view: len(device_view.windows))
        for rank_view in views
        if rank_view.devices
    }
    if sum(len(device.operations.rows) for device in devices.values()) > MOST:
        raise Missing(f"the traces hold more than {MOST:,} operations: give fewer ranks or steps")
    messages: list[Message] = []
    exchanged = _exchanged(across.exchanges, messages)
    items: list[_Item] = []
    names: set[str] = set()
    for view in views:
        if view.rank not in devices:
            continue
        if view.rank not in across.clocks:
            raise Missing(f"the clock of rank {view.rank} cannot be aligned with that of the first rank")
        shift = view.base_ns - across.clocks[view.rank].ahead_ns
        items += _of_rank(view, devices[view.rank], shift, exchanged, names)
    items.sort(key=lambda event: (event.at, event.sort))
    places = {item.key: place for place, item in enumerate(items)}
    recorded = [one.at - items[0].at for one in items]
    steps = [
        step
        for rank_view in views
        if rank_view.rank in devices
        for step in _steps(rank_view, devices[rank_view.rank], places)
    ]
    begun_in = [stretch.rank for stretch in steps]
    if not steps or min(begun_in.count(rank) for rank in set(begun_in)) < 2:
        raise Missing("needs two steps that start and end with a device operation")
    begun = {rank: min(recorded[stretch.first] for stretch in steps if stretch.rank == rank) for rank in set(begun_in)}
    # What comes before the first step is as it was, so that the step does not begin earlier than it did.
    fixed = frozenset(place for place, item in enumerate(items) if recorded[place] <= begun.get(item.key[0], 0))
    edges = [
        _of_host_alone(item, place, places) if place in fixed else _edges(item, place, places, recorded)
        for place, item in enumerate(items)
    ]
    reduced = reductions(
        [(rank_view, devices[rank_view.rank]) for rank_view in views if rank_view.rank in devices],
        exchanged,
        places,
        ddp,
    )
    queues = {view.rank: view.columns.queue for view in views}
    streams = {(rank, row): int(queues[rank][row]) for rank, row in exchanged}
    sharing, slowed = transfers([*dict.fromkeys(exchanged.values())], places, recorded, streams)
    return Program(
        recorded,
        edges,
        messages,
        steps,
        link,
        world_size,
        samples,
        batch,
        reductions=reduced,
        ranks=[item.key[0] for item in items],
        micro_batches=[item.micro_batch for item in items],
        parts=[item.part for item in items],
        optimizer=implementation_of(names),
        gathers=[
            gather
            for rank_view in views
            if rank_view.rank in devices
            for gather in gathers(rank_view, devices[rank_view.rank], places)
        ],
        transfers=sharing,
        slowed=slowed,
        fixed=fixed,
    )


def _exchanged(exchanges: Sequence[Exchange], messages: list[Message]) -> dict[tuple[int, int], Matched]:
    """By rank and row of a collective the exchange that it is part of, where all its ranks were read."""
    found = {}
    for exchange in exchanges:
        if not exchange.splits or not exchange.message_bytes:
            continue
        operations = tuple((rank, call.row) for rank, call in zip(exchange.ranks.tolist(), exchange.calls, strict=True))
        sent = Matched(operations, len(messages), exchange.kind, exchange.message_bytes)
        messages.append(Message(exchange.kind, exchange.message_bytes, exchange.dtype))
        found.update(dict.fromkeys(operations, sent))
    return found


def _of_rank(
    view: RankView,
    device: DeviceView,
    shift: int,
    exchanged: Mapping[tuple[int, int], Matched],
    updates: set[str],
) -> Iterator[_Item]:
    """The items of one rank, by the first rank's clock: those of its host, then those of its device.

    `updates` gets the names of the optimizer's kernels.
    """
    walk, rank = Walk.of(view.columns, device.operations, view.host), view.rank
    columns, host_parts = view.columns, HostParts.of(view)
    yield from _of_host(view, device, walk, shift, host_parts)
    kinds, awaited = _kinds(walk), across_streams(walk)
    launched = walk.launch != UNLAUNCHED
    called_ns = columns.ts_ns[walk.launch]
    numbers = np.where(launched, host_parts.micro_batches(called_ns), OUTSIDE).tolist()
    parts = np.where(launched, host_parts.parts(columns.thread[walk.launch], called_ns), Part.NONE)
    parts[columns.named(_UPLOAD.match, walk.rows)] |= Part.UPLOAD
    for place, row in enumerate(walk.rows.tolist()):
        if kinds[place] == Kind.UPDATE:
            updates.add(columns.name(row))
        tags = numbers[place], int(parts[place])
        yield _begins(walk, rank, place, shift, kinds, awaited.get(place, ()), *tags)
        last = _Item(int(walk.end[place]) + shift, _END, (rank, "end", row), [], *tags)
        sent = exchanged.get((rank, row))
        if sent is None:
            last.waits.append(((rank, "begin", row), int(walk.end[place] - walk.begin[place]), kinds[place], -1))
        else:  # how long is known once all are in order
            last.waits += [
                ((other_rank, "begin", other), 0.0, Kind.EXCHANGE, sent.message)
                for other_rank, other in sent.operations
            ]
        yield last


def _kinds(walk: Walk) -> list[Kind]:
    """What the time of each operation is spent on, where it is no exchange that was read on all its ranks."""

    def may_multiply(name: str) -> bool:
        return kernel_kind(name) in _PRODUCTS and not is_tensor_core(name)

    products = walk.columns.named(may_multiply, walk.rows)
    in_fp32 = walk.columns.named(is_fp32, walk.rows)
    attention = walk.columns.named(_is_fp32_attention, walk.rows)
    updating = _updating(walk)
    launched = walk.launch != UNLAUNCHED
    thread, called_ns = walk.columns.thread[walk.launch], walk.columns.ts_ns[walk.launch]
    updates = (updating.at(thread, called_ns) != NOWHERE) & launched
    computing = np.select(
        [updates, attention, in_fp32, products], [Kind.UPDATE, Kind.ATTENTION, Kind.FP32, Kind.PRODUCT], Kind.COMPUTE
    ).tolist()
    return [
        {"compute_ns": Kind(kind), "communication_ns": Kind.WAIT}.get(of, Kind.COPY)
        for kind, of in zip(computing, walk.kinds, strict=True)
    ]


def _is_fp32_attention(name: str) -> bool:
    return kernel_kind(name) == "attention" and "_f32" in name


def _updating(walk: Walk) -> Ranges:
    """When threads were in an optimizer's step()."""
    return Ranges.of_rows(walk.columns, walk.columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match))


def _of_host(view: RankView, device: DeviceView, walk: Walk, shift: int, host_parts: HostParts) -> Iterator[_Item]:
    """Calls that launch, returns of calls that wait for the device, and the borders of waits for batches, in order.

    Each waits for the one before, and for room in the launch queue: for the begin of what was launched so long before
    that the queue was full of what came after. The return of a call that waits does so for what it waited for: a copy
    that it made itself, the begin of an operation where the queue was full, else what ended last on the device.
    """
    columns, rank, loading = view.columns, view.rank, view.host.loading
    queue = _Queue(walk, Launches.of(columns, device.operations), set(view.host.blocked.full_ends_ns.tolist()))
    steps = columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match)
    updating = Intervals.union(columns.ts_ns[steps], columns.ends(steps))
    launch = np.unique(walk.launch[walk.launch != UNLAUNCHED])
    moments = list(zip(columns.ts_ns[launch].tolist(), repeat("call"), launch.tolist(), strict=False))
    moments += [(at, "held", number) for number, at in enumerate(walk.held.end_ns.tolist())]
    moments += [(at, "asked", number) for number, at in enumerate(loading.start_ns.tolist())]
    moments += [(at, "given", number) for number, at in enumerate(loading.end_ns.tolist())]
    moments += [(at, "updating", number) for number, at in enumerate(updating.start_ns.tolist())]
    before: tuple[int, str, int] | None = None
    freed_ns: int | None = None  # what starts as a full queue has room comes after what makes room
    # The start of an optimizer's step is a moment of its own: what the host does before is none of the update.
    moments.sort(key=lambda moment: (moment[0], _RETURNS_FIRST[moment[1]], moment[2]))
    times_ns = np.array([at for at, _, _ in moments], dtype=np.int64)
    parts = dict(
        zip(launch.tolist(), host_parts.parts(columns.thread[launch], columns.ts_ns[launch]).tolist(), strict=True)
    )
    tags = zip(updating.hold(times_ns).tolist(), host_parts.micro_batches(times_ns).tolist(), strict=True)
    for (at, sort, number), (updates, micro_batch) in zip(moments, tags, strict=True):
        freed = sort == "held" and at in queue.full_ends_ns
        if freed:
            freed_ns = at
        part = parts[number] if sort == "call" else Part.NONE
        item = _Item(at + shift, _FREED if at == freed_ns else _HOST, (rank, sort, number), [], micro_batch, part)
        goes_on = at
        if sort == "held":
            awaited = queue.freed(at) if freed else _awaited(walk, int(walk.held.start_ns[number]), at)
            if awaited is not None:
                what, row, since, kind = awaited
                goes_on = int(walk.held.start_ns[number])
                item.waits.append(((rank, what, row), at - since, kind, -1))
        room = queue.room(at)
        if room != UNLAUNCHED:
            item.waits.append(((rank, "begin", room), 0.0, Kind.QUEUE, -1))
        if before is not None:
            inside = updates and sort != "updating"
            kind = Kind.INPUT if sort == "given" else Kind.UPDATING if inside else Kind.HOST
            item.waits.append(((rank, before[1], before[2]), max(0, goes_on - before[0]), kind, -1))
        yield item
        before = at, sort, number


def _awaited(walk: Walk, begun: int, at: int) -> tuple[str, int, int, Kind] | None:
    """What a call that began at one moment and returned at another waited for: item, row, and when that came to pass.

    Of a copy from memory that is staged the end may come after the return, which then follows its begin.
    """
    over = walk.copied.get(at, walk.last(at))
    if over == _NOTHING or int(walk.end[over]) <= begun:
        return None
    if int(walk.end[over]) > at:
        return "begin", int(walk.rows[over]), int(walk.begin[over]), Kind.SYNC
    return "end", int(walk.rows[over]), int(walk.end[over]), Kind.SYNC


class _Queue:
    """The launch queue of a device: what has to begin before the host goes on."""

    def __init__(self, walk: Walk, launches: Launches, full_ends_ns: set[int]) -> None:
        self.full_ends_ns = full_ends_ns
        self._walk, self._called_ns = walk, launches.called_ns
        first: dict[int, int] = {}
        for row, launch in zip(walk.rows.tolist(), walk.launch.tolist(), strict=True):
            first.setdefault(launch, row)
        self._first = [first.get(launch, UNLAUNCHED) for launch in launches.rows.tolist()]
        most = int(launches.outstanding(launches.called_ns).max(initial=0))
        self._depth = most if full_ends_ns else max(DEPTH, most)

    def room(self, at: int) -> int:
        """The row of the operation that must have begun for all launches before a moment to have room, if any."""
        launched = int(np.searchsorted(self._called_ns, at, side="left"))
        return self._first[launched - 1 - self._depth] if launched > self._depth else UNLAUNCHED

    def freed(self, at: int) -> tuple[str, int, int, Kind] | None:
        """What began last before a call returned that had found the queue full."""
        place = int(np.searchsorted(self._walk.begin, at, side="right")) - 1
        if place < 0:
            return None
        return "begin", int(self._walk.rows[place]), int(self._walk.begin[place]), Kind.QUEUE


def _begins(
    walk: Walk,
    rank: int,
    place: int,
    shift: int,
    kinds: Sequence[Kind],
    awaited: Sequence[int],
    micro_batch: int,
    part: int,
) -> _Item:
    """The begin of an operation, and what it waited for: `awaited` are places of operations of other streams.

    Of one that still ran it waited for most: that part is as much longer or shorter as the whole.
    """
    begin = int(walk.begin[place])
    item = _Item(begin + shift, _BEGIN, (rank, "begin", int(walk.rows[place])), [], micro_batch, part)
    over, called = walk.waited_for(place)
    launch, before = int(walk.launch[place]), int(walk.before[place])
    if called != UNLAUNCHED:
        item.waits.append(((rank, "call", called), begin - int(walk.columns.ts_ns[called]), Kind.LAUNCH, -1))
    elif launch != UNLAUNCHED and int(walk.columns.ts_ns[launch]) <= begin:
        item.waits.append(((rank, "call", launch), 0.0, Kind.LAUNCH, -1))
    if over != _NOTHING and int(walk.end[over]) > begin:
        item.waits.append(((rank, "begin", int(walk.rows[over])), begin - int(walk.begin[over]), kinds[over], -1))
    elif over != _NOTHING:
        item.waits.append(((rank, "end", int(walk.rows[over])), begin - int(walk.end[over]), Kind.ORDER, -1))
    if before not in (_NOTHING, over) and int(walk.end[before]) <= begin:
        item.waits.append(((rank, "end", int(walk.rows[before])), 0.0, Kind.ORDER, -1))
    others = (other for other in awaited if other not in (over, before) and int(walk.end[other]) <= begin)
    item.waits += [((rank, "end", int(walk.rows[other])), 0.0, Kind.ORDER, -1) for other in others]
    return item


def _of_host_alone(item: _Item, place: int, places: Mapping[tuple[int, str, int], int]) -> list[Edge]:
    return [
        Edge(places[key], lag, kind)
        for key, lag, kind, _ in item.waits
        if kind in OF_HOST and places.get(key, place) < place
    ]


def _edges(item: _Item, place: int, places: Mapping[tuple[int, str, int], int], recorded: Sequence[int]) -> list[Edge]:
    """The edges of an item: those to earlier ones. Of an exchange all have what is left after the last rank's begin."""
    found = []
    for key, lag, kind, message in item.waits:
        earlier = places.get(key, place)
        if earlier < place:
            found.append(Edge(earlier, lag, kind, message))
    exchange = [edge for edge in found if edge.kind == Kind.EXCHANGE]
    if not exchange:
        return _tight(found, recorded, place)
    took = recorded[place] - max(recorded[edge.item] for edge in exchange)
    if took > 0:
        return [Edge(edge.item, took, edge.kind, edge.message) for edge in exchange]
    rank, _, row = item.key  # the clocks are too far off to tell who came last
    begun = places[rank, "begin", row]
    return [Edge(begun, recorded[place] - recorded[begun], Kind.WAIT)]


def _tight(edges: list[Edge], recorded: Sequence[int], place: int) -> list[Edge]:
    """The edges; the last of them as long as it was, where what was waited for was not recorded in time."""
    last = max(edges, key=lambda edge: recorded[edge.item] + edge.lag_ns, default=None)
    if last is None or recorded[last.item] + last.lag_ns >= recorded[place]:
        return edges
    longer = last.lasting(recorded[place] - recorded[last.item])
    return [longer if edge is last else edge for edge in edges]


def _steps(view: RankView, device: DeviceView, places: Mapping[tuple[int, str, int], int]) -> Iterator[Stretch]:
    """The windows that begin with an operation, and end with the begin of another, or the end of the last."""
    columns, rows = view.columns, device.operations.rows
    launched = dict(zip(rows.tolist(), device.operations.launch.tolist(), strict=True))
    rows = rows[columns.dur_ns[rows] > 0]
    starts = {int(at): int(row) for at, row in zip(columns.ts_ns[rows][::-1], rows[::-1], strict=True)}
    ends = {int(at): int(row) for at, row in zip(columns.ends(rows)[::-1], rows[::-1], strict=True)}
    for window in device.windows:
        first, after, last = starts.get(window.start_ns), starts.get(window.end_ns), ends.get(window.end_ns)
        key = None if after is None else (view.rank, "begin", after)
        key = key or (None if last is None else (view.rank, "end", last))
        if first is not None and key is not None and not window.open_ended:
            begun = places.get((view.rank, "call", launched[first]))
            followed = None if after is None else places.get((view.rank, "call", launched[after]))
            between = None if begun is None or followed is None else (begun, followed)
            yield Stretch(view.rank, window.number, places[view.rank, "begin", first], places[key], between)
