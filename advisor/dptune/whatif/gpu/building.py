"""The traces of a run -> its program.

What an operation waited for last is found as for the critical path; that it has to wait for the operation before it on
its stream, and for its launch, it is given too, as early as that could have been. The threads of the script are taken
for one, which does one thing after the other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from dptune.measure.across_ranks import MatchedCalls
from dptune.measure.communication.clocks import Clock
from dptune.measure.communication.matching import MatchedCollective
from dptune.measure.device.critical import Walk
from dptune.measure.device.kernel_kinds import OTHER, kernel_kind
from dptune.measure.device.precisions import is_fp32, is_tensor_core
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.trace.kernels import OPTIMIZER_STEP_NAME, RANGE_CATEGORIES
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.contention import with_contention, works
from dptune.whatif.gpu.edges import edges_of
from dptune.whatif.gpu.gathers import gathers
from dptune.whatif.gpu.graph import COMPUTING, Kind, Message, offsets_of
from dptune.whatif.gpu.host_items import NOTHING, HostItems, begins_after, ends_after, host_items
from dptune.whatif.gpu.items import NO_MESSAGE, ItemPlaces, Items, Sort, Waits
from dptune.whatif.gpu.latencies import Latencies
from dptune.whatif.gpu.optimizing import implementation_of
from dptune.whatif.gpu.parts import OUTSIDE, HostParts, Part
from dptune.whatif.gpu.program import SEVERAL, Program
from dptune.whatif.gpu.recorded_waits import recorded_waits
from dptune.whatif.gpu.reductions import Matched, reductions
from dptune.whatif.gpu.sharing import transfers
from dptune.whatif.gpu.streams import across_streams, starts_of
from dptune.whatif.gpu.stretches import of_all_ranks, steps_of
from dptune.whatif.gpu.unit_hooks import unit_share
from dptune.whatif.gpu.unit_reductions import unit_reductions

MOST = 2_000_000  # operations: beyond, a replay takes minutes
_PRODUCTS = frozenset({"matrix product", "convolution", "attention", "fused by triton", OTHER})
_UPLOAD = re.compile(r"Memcpy HtoD \(Pageable")
_NO_STEPS = "needs two steps that start and end with a device operation"
_FARTHEST = 2**62  # ns between the clocks of ranks


def build(
    views: Sequence[RankView],
    between: MatchedCalls,
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
    communicated = _communicated(between.collectives, messages)
    names: set[str] = set()
    read = [(view, devices[view.rank]) for view in views if view.rank in devices]
    items = {view.rank: _of_rank(view, device, communicated, names) for view, device in read}
    if not items:
        raise Missing(_NO_STEPS)
    counts = [len(each.time_ns) for each in items.values()]
    first = dict(zip(items, [0, *accumulate(counts)], strict=False))
    time_ns = _on_one_clock([view for view, _ in read], between.clocks, items)
    collectives, arrivals = _awaited_by_collectives(communicated, items, first, time_ns)
    time_ns = np.concatenate((time_ns, arrivals.time_ns))
    ranks = np.concatenate((np.repeat([*items], counts), arrivals.rank))
    sort = _with_arrivals([each.sort for each in items.values()], arrivals, Sort.ARRIVED)
    order = np.lexsort((sort, time_ns))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    named = ItemPlaces(items, first, places)
    recorded_ns = time_ns[order] - time_ns[order[:1]]
    recorded = recorded_ns.tolist()
    steps = of_all_ranks([step for view, device in read for step in steps_of(view, device, named)])
    begun: dict[int, list[int]] = {}
    for stretch in steps:
        begun.setdefault(stretch.rank, []).append(recorded[stretch.first])
    if min(map(len, begun.values()), default=0) < 2:
        raise Missing(_NO_STEPS)
    # What comes before the first step is as it was, so that the step does not begin earlier than it did.
    until_ns = np.repeat([min(begun.get(rank, [0])) for rank in items], counts)
    fixed = recorded_ns <= np.concatenate((until_ns, np.full(arrivals.count, -1)))[order]
    waits = Waits.joined([*(each.waits.later(first[rank]) for rank, each in items.items()), arrivals.waits])
    columns = edges_of(waits, collectives, places, recorded_ns, fixed)
    queues = {view.rank: view.columns.queue for view in views}
    sized = {operation: sent for operation, sent in communicated.items() if sent.message != NO_MESSAGE}
    streams = {(rank, row): int(queues[rank][row]) for rank, row in sized}
    sharing, slowed = transfers([*dict.fromkeys(sized.values())], named, recorded, streams)
    of_units = [reduction for view, device in read for reduction in unit_reductions(view, device, named)]
    program = Program(
        recorded,
        columns.edges(),
        messages,
        steps,
        link,
        world_size,
        samples,
        batch,
        reductions=reductions(read, sized, named, ddp, {step.number for step in steps}),
        ranks=ranks[order].tolist(),
        micro_batches=_with_arrivals([each.micro_batch for each in items.values()], arrivals, OUTSIDE)[order].tolist(),
        parts=_with_arrivals([each.part for each in items.values()], arrivals, Part.NONE)[order].tolist(),
        optimizer=implementation_of(names),
        gathers=[gather for view, device in read for gather in gathers(view, device, named)],
        unit_reductions=of_units,
        unit_share=unit_share((view.columns for view, _ in read), of_units),
        transfers=sharing,
        slowed=slowed,
        fixed=frozenset(np.flatnonzero(fixed).tolist()),
        spent_ns=_spent(items, first, places),
        uploads={
            int(places[first[rank] + end]): size for rank, each in items.items() for end, size in each.uploads.items()
        },
        queues={
            int(places[first[rank] + begin]): queue
            for rank, each in items.items()
            for begin, queue in each.queues.items()
        },
    )
    numbered = {
        int(places[first[rank] + end]): number * len(items) + at
        for at, (rank, each) in enumerate(items.items())
        for end, number in each.works.items()
    }
    return with_contention(program.knowing(columns), numbered)


def _spent(items: Mapping[int, Items], first: Mapping[int, int], places: Ints) -> dict[Part, dict[int, float]]:
    """By part and place of a host item, what the host spent on the part before the item."""
    found: dict[Part, dict[int, float]] = defaultdict(dict)
    for rank, each in items.items():
        for part, spent_ns in each.spent_ns.items():
            (numbers,) = np.nonzero(spent_ns)
            at = places[first[rank] + numbers].tolist()
            found[part].update(zip(at, spent_ns[numbers].astype(np.float64).tolist(), strict=True))
    return found


def _with_arrivals(columns: Sequence[Ints], arrivals: _Arrivals, value: int) -> Ints:
    """A column of the items of all ranks, with the same value for all arrivals."""
    return np.concatenate([*columns, np.full(arrivals.count, value)])


def _on_one_clock(views: Sequence[RankView], clocks: Mapping[int, Clock], items: Mapping[int, Items]) -> Ints:
    """When each item comes to pass, by the first rank's clock and from some moment on.

    Raises Missing where a clock cannot be aligned with it.
    """
    shifts = {}
    for view in views:
        if view.rank not in clocks:
            raise Missing(f"no collective of rank {view.rank} matches one of the first rank: {_unaligned(view.rank)}")
        shifts[view.rank] = view.base_ns - clocks[view.rank].ahead_ns
    least = min(shifts.values(), default=0)
    for rank, shift in shifts.items():
        if shift - least + int(np.abs(items[rank].time_ns).max(initial=0)) > _FARTHEST:
            raise Missing(_unaligned(rank))
    return np.concatenate([items[rank].time_ns + (shift - least) for rank, shift in shifts.items()])


def _unaligned(rank: int) -> str:
    return f"the clock of rank {rank} cannot be aligned with that of the first rank"


def _communicated(collectives: Sequence[MatchedCollective], messages: list[Message]) -> dict[tuple[int, int], Matched]:
    """By rank and row of a call the matched collective that it is part of, where all its ranks were read."""
    found = {}
    for collective in collectives:
        if not collective.splits:
            continue
        operations = tuple(
            (rank, call.row) for rank, call in zip(collective.ranks.tolist(), collective.calls, strict=True)
        )
        size = collective.message_bytes or 0
        sent = Matched(operations, len(messages) if size else NO_MESSAGE, collective.kind, size)
        found.update(dict.fromkeys(operations, sent))
        if size:
            offsets = offsets_of(collective.ranks.tolist())
            messages.append(Message(collective.kind, size, collective.dtype, len(operations), offsets))
    return found


def _of_rank(
    view: RankView, device: DeviceView, communicated: Mapping[tuple[int, int], Matched], updates: set[str]
) -> Items:
    """The items of one rank: those of its host, then begin and end of each operation of its device.

    `updates` gets the names of the optimizer's kernels.
    """
    walk, columns, host_parts = Walk.of(view.columns, device.operations, view.host), view.columns, HostParts.of(view)
    host, kinds = host_items(view, device, walk, host_parts), _kinds(walk)
    awaited = recorded_waits(view, walk)
    if awaited is None:
        awaited = across_streams(walk, starts_of(view))
    launched = walk.launch != UNLAUNCHED
    called_ns = columns.ts_ns[walk.launch]
    micro_batches = np.where(launched, host_parts.micro_batches(called_ns), OUTSIDE)
    parts = np.where(launched, host_parts.parts(columns.thread[walk.launch], called_ns), Part.NONE)
    uploaded = columns.named(_UPLOAD.match, walk.rows)
    parts[uploaded] |= Part.UPLOAD
    parts[columns.named(lambda name: kernel_kind(name) == "convolution", walk.rows)] |= Part.CUDNN
    sizes = columns.total_bytes[walk.rows[uploaded]]
    updates.update(columns.name(row) for row in walk.rows[kinds == Kind.UPDATE].tolist())
    rows, count = walk.rows.tolist(), len(host.time_ns)
    places = np.arange(len(rows))
    begins, ends = begins_after(count, places), ends_after(count, places)
    lasting = places[[(view.rank, row) not in communicated for row in rows]] if rows else places
    took = Waits.of(ends[lasting], begins[lasting], walk.end[lasting] - walk.begin[lasting], kinds[lasting], 0)
    return Items(
        time_ns=np.concatenate((host.time_ns, np.stack((walk.begin, walk.end), axis=1).ravel())),
        sort=np.concatenate((host.sort, np.tile((Sort.BEGIN, Sort.END), len(rows)))),
        micro_batch=np.concatenate((host.micro_batch, np.repeat(micro_batches, 2))),
        part=np.concatenate((host.part, np.repeat(parts, 2))),
        waits=Waits.joined([host.waits, *_before_begins(walk, kinds, awaited, host), took]),
        spent_ns=host.spent_ns,
        calls=dict(zip(host.calls.tolist(), host.call_items.tolist(), strict=True)),
        begins=dict(zip(rows, begins.tolist(), strict=True)),
        ends=dict(zip(rows, ends.tolist(), strict=True)),
        works=_works(walk, kinds, ends),
        queues=_queues(walk, host, begins),
        uploads={end: size for end, size in zip(ends[uploaded].tolist(), sizes.tolist(), strict=True) if size > 0},
    )


def _queues(walk: Walk, host: HostItems, begins: Ints) -> dict[int, int]:
    """By begin of an operation the number of its launch queue, but for those of the queue with most launches."""
    calls = zip(begins.tolist(), walk.launch.tolist(), strict=True)
    return {begin: queue for begin, call in calls if (queue := host.queues.get(call, 0))}


def _works(walk: Walk, kinds: Ints, ends: Ints) -> dict[int, int]:
    """By end of a kernel, the number of its work, from the kernels that its stream runs before and after it."""
    computing = np.flatnonzero(np.isin(kinds, [*COMPUTING]) & (walk.launch != UNLAUNCHED))
    streams = walk.columns.queue[walk.rows[computing]]
    in_order = computing[np.lexsort((walk.columns.ts_ns[walk.launch[computing]], streams))]
    numbers = works(walk.columns.name_id[walk.rows[in_order]].astype(np.int64))
    return dict(zip(ends[in_order].tolist(), numbers.tolist(), strict=True))


def _before_begins(walk: Walk, kinds: Ints, awaited: Mapping[int, Sequence[int]], host: HostItems) -> Iterator[Waits]:
    """What the begins of operations waited for: `awaited` are by place those of operations of other streams.

    Of one that still ran it waited for most: that part is as much longer or shorter as the whole.
    """
    count, begin, end, places = len(host.time_ns), walk.begin, walk.end, np.arange(len(walk.rows))
    begins, (over, called) = begins_after(count, places), walk.all_waited_for
    in_order = np.argsort(host.calls, kind="stable")
    calls, call_items = host.calls[in_order], host.call_items[in_order]

    def of_calls(rows: Ints) -> Ints:
        return np.asarray(call_items[np.searchsorted(calls, rows)], dtype=np.int64)

    launched, launch_ns = walk.launch != UNLAUNCHED, np.zeros(len(begin), dtype=np.int64)
    launch_ns[launched] = host.time_ns[of_calls(walk.launch[launched])]
    latencies = Latencies.of(walk, awaited, launch_ns)
    late, earlier = latencies.late, (called == UNLAUNCHED) & launched & (launch_ns <= begin)
    latest = (called != UNLAUNCHED) | (earlier & late)
    yield Waits.of(begins[latest], of_calls(walk.launch[latest]), (begin - launch_ns)[latest], Kind.LAUNCH, 0)
    earlier &= ~latest
    least_ns = latencies.launch_ns[earlier]
    yield Waits.of(begins[earlier], of_calls(walk.launch[earlier]), least_ns, Kind.LAUNCH, 0)
    known = over != NOTHING
    running = known & (end[over] > begin)
    of_running = over[running]
    lag_ns = begin[running] - begin[of_running]
    yield Waits.of(begins[running], begins_after(count, of_running), lag_ns, kinds[of_running], 1)
    ended = latencies.followed
    yield Waits.of(begins[ended], ends_after(count, over[ended]), latencies.since_ns[ended], Kind.ORDER, 1)
    before = walk.before
    queued = (before != NOTHING) & (before != over) & (end[before] <= begin)
    gap_ns = np.minimum((begin - end[before])[queued], latencies.gap_ns)
    yield Waits.of(begins[queued], ends_after(count, before[queued]), gap_ns, Kind.ORDER, 2)
    pairs = [(place, other) for place, others in awaited.items() for other in others]
    waiting, others = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    free = (others != over[waiting]) & (others != before[waiting]) & (end[others] <= begin[waiting])
    yield Waits.of(begins[waiting[free]], ends_after(count, others[free]), 0, Kind.ORDER, 3)


@dataclass(frozen=True, eq=False)
class _Arrivals:
    """The items that stand for the last begin of a collective: when, of which rank, and the begins they wait for."""

    time_ns: Ints
    rank: Ints
    waits: Waits

    @property
    def count(self) -> int:
        return len(self.time_ns)


def _awaited_by_collectives(
    communicated: Mapping[tuple[int, int], Matched],
    items: Mapping[int, Items],
    first: Mapping[int, int],
    time_ns: Ints,
) -> tuple[Waits, _Arrivals]:
    """The ends of matched collectives wait for all their begins; how long is known once all are in order.

    One item stands for the begins of several ranks where all ends are after the last of them; it is numbered after
    those of `time_ns`.
    """
    none = np.empty(0, dtype=np.int64)
    found, arriving = [Waits.of(none, none, 0, Kind.COLLECTIVE, 0)], [Waits.of(none, none, 0, Kind.ARRIVAL, 0)]
    arrived: list[tuple[int, int]] = []
    for sent in dict.fromkeys(communicated.values()):
        read = [(rank, row) for rank, row in sent.operations if rank in items and row in items[rank].begins]
        begins = np.array([first[rank] + items[rank].begins[row] for rank, row in read], dtype=np.int64)
        ends = np.array(
            [first[rank] + items[rank].ends[row] for rank, row in read if communicated[rank, row] is sent],
            dtype=np.int64,
        )
        if len(begins) >= SEVERAL and len(ends) and (last_ns := time_ns[begins].max()) < time_ns[ends].min():
            number = len(time_ns) + len(arrived)
            arrived.append((int(last_ns), read[0][0]))
            arriving.append(Waits.of(np.full(len(begins), number), begins, 0, Kind.ARRIVAL, 0))
            begins = np.array([number])
        waiting, awaited = np.repeat(ends, len(begins)), np.tile(begins, len(ends))
        kind = Kind.UNSIZED if sent.message == NO_MESSAGE else Kind.COLLECTIVE
        found.append(Waits.of(waiting, awaited, 0, kind, 0, sent.message))
    at_ns, ranks = np.array(arrived, dtype=np.int64).reshape(-1, 2).T
    return Waits.joined(found), _Arrivals(at_ns, ranks, Waits.joined(arriving))


def _kinds(walk: Walk) -> Ints:
    """What the time of each operation is spent on, where it is no collective that was read on all its ranks."""

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
    )
    classes = np.array(walk.kinds, dtype=np.str_)
    of_class = [classes == "compute_ns", classes == "communication_ns"]
    return np.select(of_class, [computing, np.full(len(computing), Kind.WAIT)], Kind.COPY).astype(np.int64)


def _is_fp32_attention(name: str) -> bool:
    return kernel_kind(name) == "attention" and "_f32" in name


def _updating(walk: Walk) -> Ranges:
    """When threads were in an optimizer's step()."""
    return Ranges.of_rows(walk.columns, walk.columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match))
