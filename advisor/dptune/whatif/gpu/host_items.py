"""What the host of a rank does, as items: calls that launch, returns of calls that wait, waits for batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from dptune.measure.device.critical import Walk
from dptune.measure.host.blocked import Blocked
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.queue import DEPTH, Launches
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measure.views import DeviceView, RankView
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPTIMIZER_STEP_NAME, RANGE_CATEGORIES
from dptune.whatif.gpu.clocks import behind_ns
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.items import Sort, Waits
from dptune.whatif.gpu.parts import HostParts, Part

NOTHING = -1
_AT_ONCE_NS = 200_000  # 38 to 75 us in a public trace of V100s; Python between them takes longer
_FREES = re.compile(r"(cudaFree|hipFree|cuMemFree(_v2)?)$")


class Moment(IntEnum):
    """What the host does; of one time in this order."""

    HELD = 0  # a call that waited returns
    GIVEN = 1  # a batch is there
    UPDATING = 2  # an optimizer's step starts: what the host does before is none of the update
    CALL = 3  # a call that launches
    ASKED = 4  # a wait for a batch starts


@dataclass(frozen=True, eq=False)
class HostItems:
    """The host's items in order, by the clock of the device. `waits` are by their number; operations come after them.

    `spent_ns`: by part, how much of the host's own time before an item was spent on it.

    `calls` are the rows of those that launch, `call_items` the numbers of these. `queues`: by row of a call the launch
    queue that it launches into, 0 for the one with most of them.
    """

    time_ns: Ints
    sort: Ints
    micro_batch: Ints
    part: Ints
    waits: Waits
    spent_ns: Mapping[Part, Ints]
    calls: Ints
    call_items: Ints
    queues: Mapping[int, int]


def begins_after(host_items: int, places: Ints) -> Ints:
    """The numbers of the begins of operations at these places of the walk, after so many items of the host."""
    return np.asarray(host_items + 2 * places, dtype=np.int64)


def ends_after(host_items: int, places: Ints) -> Ints:
    """The numbers of their ends."""
    return begins_after(host_items, places) + 1


def host_items(view: RankView, device: DeviceView, walk: Walk, host_parts: HostParts) -> HostItems:
    """Calls that launch, returns of calls that wait for the device, and the borders of waits for batches, in order.

    Each waits for the one before, and for room in the launch queue: for the begin of what was launched so long before
    that the queue was full of what came after. The return of a call that waits does so for what it waited for: a copy
    that it made itself, the begin of an operation where the queue was full, else what ended last on the device. One
    that frees memory of the device waits, too, and then goes on with that.
    """
    columns, releasing = view.columns, _releasing(view, walk)
    walk = replace(walk, held=walk.held | releasing)
    queue = _Queue(walk, Launches.of(columns, device.operations), view.host.blocked)
    steps = columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match)
    updating = Intervals.union(columns.ts_ns[steps], columns.ends(steps))
    launch = np.unique(walk.launch[walk.launch != UNLAUNCHED])
    time_ns, moment, number = _moments(view, walk, launch, updating)
    count = len(time_ns)
    calling = moment == Moment.CALL
    freed = (moment == Moment.HELD) & np.isin(time_ns, queue.full_ends_ns)
    # What starts as a full queue has room comes after what makes room.
    sort = np.where(np.isin(time_ns, time_ns[freed]), Sort.FREED, Sort.HOST)
    part = np.full(count, Part.NONE, dtype=np.int64)
    called = number[calling]
    part[calling] = host_parts.parts(columns.thread[called], columns.ts_ns[called])
    behind = behind_ns(walk, time_ns)
    goes_on_ns, held = _held(walk, queue, time_ns, behind, number, np.flatnonzero(moment == Moment.HELD), freed)
    held = replace(held, kind=np.where(np.isin(time_ns[held.item], releasing.end_ns), Kind.RELEASE, held.kind))
    inside = updating.hold(time_ns) & (moment != Moment.UPDATING)
    kind = np.where(moment == Moment.GIVEN, Kind.INPUT, np.where(inside, Kind.UPDATING, Kind.HOST))
    after = np.arange(1, count)
    moved_ns = time_ns - behind
    until_ns = np.maximum(moved_ns[:-1], goes_on_ns[1:])
    before = Waits.of(after, after - 1, until_ns - moved_ns[:-1], kind[1:], 2)
    since_ns, until_ns = time_ns[:-1], np.maximum(time_ns[:-1], until_ns + behind[1:])
    spent_ns = {part: intervals.lengths(since_ns, until_ns) for part, intervals in host_parts.spent.items()}
    return HostItems(
        moved_ns,
        sort,
        host_parts.micro_batches(time_ns),
        part,
        Waits.joined([held, queue.waits(time_ns), before]),
        {part: np.append(np.zeros(min(1, count), dtype=np.int64), ns) for part, ns in spent_ns.items()},
        called,
        np.flatnonzero(calling),
        queue.numbers,
    )


def _releasing(view: RankView, walk: Walk) -> Intervals:
    """When calls that free memory of the device wait for what it has left to do: until the last of that is over.

    `cudaFree` waits for the device (CUDA Runtime API, "API synchronization behavior" of memory calls): in six public
    traces no operation outlasts one of 1,472 such calls, and one call waits a second for a collective. Before the first
    of several, torch's allocator waits for the operations of other streams that use its blocks
    (`synchronize_and_free_events`), by calls that traces do not have: such a wait lasts from the call before until an
    operation ends, and the memory is freed at once after that.
    """
    columns, launched = view.columns, walk.launch[walk.launch != UNLAUNCHED]
    threads = np.unique(columns.thread[launched])
    calls = columns.rows(LAUNCH_CATEGORIES, _FREES.match)
    calls = calls[np.isin(columns.thread[calls], threads)]
    calls = calls[np.argsort(columns.ts_ns[calls], kind="stable")]
    start_ns, end_ns = columns.ts_ns[calls], columns.ends(calls)
    inside_ns = np.minimum(_over(walk, end_ns, start_ns), end_ns)
    before_ns = _calls_before(view, calls)
    over_ns = _over(walk, start_ns, before_ns)
    at_once = (start_ns - over_ns <= _AT_ONCE_NS) & _on_other_streams(walk, start_ns)
    since_ns = np.concatenate((start_ns, before_ns[at_once]))
    until_ns = np.concatenate((inside_ns, over_ns[at_once]))
    waited = until_ns > since_ns
    return Intervals.union(since_ns[waited], until_ns[waited])


def _over(walk: Walk, time_ns: Ints, otherwise_ns: Ints) -> Ints:
    """When the last operation until each moment was over, by the clock of the host; `otherwise_ns` where none was."""
    over = np.searchsorted(walk.ends, time_ns, side="right") - 1
    known = over >= 0
    last_ns = walk.ends[over[known]]
    found = otherwise_ns.copy()
    found[known] = last_ns + behind_ns(walk, last_ns)
    return found


def _on_other_streams(walk: Walk, time_ns: Ints) -> Mask:
    """By moment whether the last operation until then ran on another stream than most do."""
    streams = walk.columns.queue[walk.rows]
    if not len(streams):
        return np.zeros(len(time_ns), dtype=np.bool_)
    numbers, counts = np.unique(streams, return_counts=True)
    last = np.array([walk.last(at) for at in time_ns.tolist()], dtype=np.int64)
    return np.asarray((last != NOTHING) & (streams[last] != numbers[np.argmax(counts)]), dtype=np.bool_)


def _calls_before(view: RankView, calls: Ints) -> Ints:
    """By call when the one before it on its thread returned; its own start where it has none."""
    columns, rows = view.columns, view.columns.rows(LAUNCH_CATEGORIES)
    found = columns.ts_ns[calls].copy()
    for thread in np.unique(columns.thread[calls]).tolist():
        ends_ns = np.sort(columns.ends(rows[columns.thread[rows] == thread]))
        (mine,) = np.nonzero(columns.thread[calls] == thread)
        at = np.searchsorted(ends_ns, found[mine], side="right") - 1
        found[mine] = np.where(at >= 0, ends_ns[at], found[mine])
    return found


def _moments(view: RankView, walk: Walk, launch: Ints, updating: Intervals) -> tuple[Ints, Ints, Ints]:
    """In order of time: when, `Moment`, and the row of a call, else the number among those alike."""
    loading = view.host.loading
    several = (
        (Moment.CALL, view.columns.ts_ns[launch], launch),
        (Moment.HELD, walk.held.end_ns, np.arange(len(walk.held))),
        (Moment.ASKED, loading.start_ns, np.arange(len(loading))),
        (Moment.GIVEN, loading.end_ns, np.arange(len(loading))),
        (Moment.UPDATING, updating.start_ns, np.arange(len(updating))),
    )
    time_ns = np.concatenate([times for _, times, _ in several])
    moment = np.concatenate([np.full(len(times), what, dtype=np.int64) for what, times, _ in several])
    number = np.concatenate([numbers for _, _, numbers in several])
    order = np.lexsort((number, moment, time_ns))
    return time_ns[order], moment[order], number[order]


def _held(
    walk: Walk, queue: _Queue, time_ns: Ints, behind: Ints, number: Ints, held: Ints, freed: Mask
) -> tuple[Ints, Waits]:
    """From when on each item is the host's own doing, and what calls that return waited for."""
    goes_on_ns, found = time_ns - behind, []
    for item in held.tolist():
        at, late = int(time_ns[item]), int(behind[item])
        begun = int(walk.held.start_ns[number[item]]) - late
        itself = walk.copied.get(at, NOTHING)
        awaited = queue.freed(at, late) if freed[item] else _awaited(walk, begun, at - late, itself)
        if awaited is not None:
            goes_on_ns[item] = begun
            found.append((item, *awaited))
    items, operations, since_ns, kinds, ended = np.array(found, dtype=np.int64).reshape(-1, 5).T
    numbers = np.where(ended, ends_after(len(time_ns), operations), begins_after(len(time_ns), operations))
    return goes_on_ns, Waits.of(items, numbers, (time_ns - behind)[items] - since_ns, kinds, 0)


def _awaited(walk: Walk, begun: int, at: int, itself: int) -> tuple[int, int, Kind, bool] | None:
    """What a call that began at one moment and returned at another waited for: its place, when that came to pass, ns.

    `itself`: the copy that it returns with. Whether that is its end: of a copy from memory that is staged the end may
    come after the return, which then follows its begin.
    """
    over = walk.last(at) if itself == NOTHING else itself
    if over == NOTHING or int(walk.end[over]) <= begun:
        return None
    if int(walk.end[over]) > at:
        return over, int(walk.begin[over]), Kind.SYNC, False
    return over, int(walk.end[over]), Kind.SYNC, True


class _Queue:
    """The launch queues of a device: what has to begin before the host goes on.

    `numbers`: by row of a call that launches, its queue, from 0 on in the order of how many calls launch into each.
    """

    def __init__(self, walk: Walk, launches: Launches, blocked: Blocked) -> None:
        self._walk, self._called_ns = walk, launches.called_ns
        self.full_ends_ns = walk.columns.ends(blocked.full)
        self._full = dict(zip(self.full_ends_ns.tolist(), blocked.full.tolist(), strict=True))
        queues = [*launches.by_queue(of_streams=blocked.of_streams)]
        queues.sort(key=lambda queue: len(queue[1]), reverse=True)
        most = max((int(mine.outstanding(mine.called_ns).max(initial=0)) for _, _, mine in queues), default=0)
        depth = most if len(blocked.full) else max(DEPTH, most)
        first = _firsts(walk, launches.rows)
        self._room = np.full(len(first), NOTHING, dtype=np.int64)
        self.numbers: dict[int, int] = {}
        self._begun: dict[int, Ints] = {}
        streams = walk.columns.queue[walk.rows]
        for number, (queue, places, mine) in enumerate(queues):
            self.numbers.update(dict.fromkeys(mine.rows.tolist(), number))
            self._room[places[depth:]] = first[places[: max(0, len(places) - depth)]]
            self._begun[number] = np.flatnonzero(streams == queue) if blocked.of_streams else np.arange(len(streams))

    def waits(self, time_ns: Ints) -> Waits:
        """For the begin of the operation that makes room for the last launch before each moment, where one has to."""
        last = np.searchsorted(self._called_ns, time_ns, side="left") - 1
        items = np.flatnonzero(last >= 0)
        room = self._room[last[items]]
        known = room != NOTHING
        return Waits.of(items[known], begins_after(len(time_ns), room[known]), 0, Kind.QUEUE, 1)

    def freed(self, at: int, late: int) -> tuple[int, int, Kind, bool] | None:
        """What began last in its queue before a call returned that had found it full; the device is so much behind."""
        begun = self._begun.get(self.numbers.get(self._full[at], NOTHING), np.arange(len(self._walk.begin)))
        number = int(np.searchsorted(self._walk.begin[begun], at - late, side="right")) - 1
        if number < 0:
            return None
        place = int(begun[number])
        return place, int(self._walk.begin[place]), Kind.QUEUE, False


def _firsts(walk: Walk, rows: Ints) -> Ints:
    """By call the place of the first operation that it launches; NOTHING where that does not last."""
    launched, first = np.unique(walk.launch, return_index=True)
    if not len(launched):
        return np.full(len(rows), NOTHING, dtype=np.int64)
    at = np.minimum(np.searchsorted(launched, rows), len(launched) - 1)
    return np.where(launched[at] == rows, first[at], NOTHING).astype(np.int64)
