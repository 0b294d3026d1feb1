"""The items of GPU steps and what they wait for, found again one by one, each with a key of its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measure.across_ranks import matched_calls
from dptune.measure.communication.kinds import kernel_collective
from dptune.measure.complete import complete
from dptune.measure.device.critical import Walk
from dptune.measure.host.queue import DEPTH, Launches
from dptune.measure.intervals import Intervals
from dptune.measure.steps.steady import steady
from dptune.measure.views import DeviceView, RankView, light_views
from dptune.trace import load
from dptune.trace.kernels import OPTIMIZER_STEP_NAME, RANGE_CATEGORIES
from dptune.trace.run import Run
from dptune.whatif.gpu.building import _kinds, build
from dptune.whatif.gpu.columns import Columns
from dptune.whatif.gpu.graph import OF_HOST, Edge, Kind
from dptune.whatif.gpu.items import Sort
from dptune.whatif.gpu.ordering import _order
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.recorded_waits import recorded_waits
from dptune.whatif.gpu.streams import across_streams, starts_of
from dptune.whatif.gpu.unit_streams import gathers_of_units

from ..measure.handmade import load_events  # noqa: TID252 - tests are no installed package
from ..measure.test_blocked import on_two_streams, queued, reading_the_loss  # noqa: TID252 - tests are no installed package
from ..simulator import pairs  # noqa: TID252 - tests are no installed package

SAMPLES = Path(__file__).parents[2] / "sample_traces" / "gpu"
NOTHING = -1
IN_TURN = {"held": 0, "given": 1, "updating": 2, "call": 3, "asked": 4}
Key = tuple[int, str, int]


@dataclass
class Item:
    at: int
    sort: int
    key: Key
    waits: list[tuple[Key, float, Kind]] = field(default_factory=list)


def of_host(view: RankView, device: DeviceView, walk: Walk, shift: int) -> list[Item]:
    columns, rank, loading = view.columns, view.rank, view.host.loading
    launches = Launches.of(columns, device.operations)
    called_ns, launched_by = launches.called_ns.tolist(), zip(walk.launch.tolist(), walk.rows.tolist(), strict=True)
    first = dict(reversed([*launched_by]))
    blocked = view.host.blocked
    full = dict(zip(columns.ends(blocked.full).tolist(), blocked.full.tolist(), strict=True))
    stream_of = dict(zip(launches.rows.tolist(), launches.stream.tolist(), strict=True))
    queue_of = {row: stream if blocked.of_streams else 0 for row, stream in stream_of.items()}
    queues: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # by queue the row, the call and the begin
    for row, called, begin in zip(launches.rows.tolist(), called_ns, launches.begun_ns.tolist(), strict=True):
        queues[queue_of[row]].append((row, called, begin))
    begun_ns = {queue: sorted(begin for _, _, begin in each) for queue, each in queues.items()}
    numbers = {row: number for each in queues.values() for number, (row, _, _) in enumerate(each)}
    most = max(
        (numbers[row] - bisect_right(begun_ns[queue], at) for queue, each in queues.items() for row, at, _ in each),
        default=0,
    )
    depth = most if full else max(DEPTH, most)
    rows = columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match)
    updating = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
    moments = [(int(columns.ts_ns[call]), "call", call) for call in {*walk.launch.tolist()} - {NOTHING}]
    for name, times_ns in (
        ("held", walk.held.end_ns),
        ("asked", loading.start_ns),
        ("given", loading.end_ns),
        ("updating", updating.start_ns),
    ):
        moments += [(at, name, number) for number, at in enumerate(times_ns.tolist())]
    moments.sort(key=lambda moment: (moment[0], IN_TURN[moment[1]], moment[2]))
    found: list[Item] = []
    before: tuple[int, str, int] | None = None
    freed_ns = None
    for at, name, number in moments:
        freed = name == "held" and at in full
        freed_ns = at if freed else freed_ns
        item = Item(at + shift, Sort.FREED if at == freed_ns else Sort.HOST, (rank, name, number))
        goes_on = at
        if name == "held":
            begun = int(walk.held.start_ns[number])
            into = stream_of.get(full[at]) if freed and blocked.of_streams else None
            awaited = freeing(walk, at, into) if freed else ended_last(walk, begun, at)
            if awaited is not None:
                what, row, since, kind = awaited
                item.waits.append(((rank, what, row), at - since, kind))
                goes_on = begun
        launched = bisect_left(called_ns, at)
        if launched:
            last = int(launches.rows[launched - 1])
            freeing_number = numbers[last] - depth
            room = queues[queue_of[last]][freeing_number][0] if freeing_number >= 0 else None
            if room in first:
                item.waits.append(((rank, "begin", first[room]), 0.0, Kind.QUEUE))
        if before is not None:
            inside = bool(updating.hold(np.array([at]))[0]) and name != "updating"
            kind = Kind.INPUT if name == "given" else Kind.UPDATING if inside else Kind.HOST
            item.waits.append(((rank, *before[1:]), max(0, goes_on - before[0]), kind))
        found.append(item)
        before = at, name, number
    return found


def freeing(walk: Walk, at: int, stream: int | None) -> tuple[str, int, int, Kind] | None:
    streams = walk.columns.queue[walk.rows].tolist()
    of_queue = [place for place in range(len(streams)) if stream in (None, streams[place])]
    begun = [place for place in of_queue if walk.begin[place] <= at]
    return ("begin", int(walk.rows[begun[-1]]), int(walk.begin[begun[-1]]), Kind.QUEUE) if begun else None


def ended_last(walk: Walk, begun: int, at: int) -> tuple[str, int, int, Kind] | None:
    over = walk.copied.get(at, walk.last(at))
    if over == NOTHING or int(walk.end[over]) <= begun:
        return None
    name, times_ns = ("begin", walk.begin) if int(walk.end[over]) > at else ("end", walk.end)
    return name, int(walk.rows[over]), int(times_ns[over]), Kind.SYNC


def _awaited(view: RankView, walk: Walk) -> Any:
    recorded = recorded_waits(view, walk)
    return across_streams(walk, starts_of(view)) if recorded is None else recorded


class Held:
    """Whether a launch is the reason for a begin that another operation ended shortly before."""

    def __init__(self, walk: Walk, awaited: Any) -> None:
        self.walk, self.awaited = walk, awaited
        since_call = walk.begin - walk.columns.ts_ns[walk.launch]
        over, called = walk.all_waited_for
        idle = [int(since_call[place]) for place in range(len(over)) if called[place] != NOTHING]
        self.latency_ns, self.most_ns = (int(np.percentile(idle, at)) if len(idle) >= 10 else 0 for at in (50, 90))
        behind = [
            (int(walk.begin[place] - walk.end[over[place]]), self._soon(place))
            for place in range(len(over))
            if over[place] != NOTHING
            and over[place] == walk.before[place]
            and walk.end[over[place]] <= walk.begin[place]
        ]
        sure = [gap for gap, soon in behind if not soon]
        gaps = sure if len(sure) >= 10 and median(sure) >= 1 else [gap for gap, _ in behind]
        self.gap_ns = int(median(gaps)) if len(gaps) >= 10 else 0

    def _soon(self, place: int) -> bool:
        """Whether it begins as soon after its launch as on an idle device."""
        launch = int(self.walk.launch[place])
        since_call = int(self.walk.begin[place] - self.walk.columns.ts_ns[launch])
        return launch != NOTHING and 0 <= since_call <= self.most_ns

    def of(self, place: int) -> tuple[bool, int | None]:
        """That, and how long it begins after the other; None where it does not wait for that."""
        over = int(self.walk.all_waited_for[0][place])
        if over == NOTHING or self.walk.end[over] > self.walk.begin[place]:
            return False, None
        since = int(self.walk.begin[place] - self.walk.end[over])
        if not self._soon(place):
            return False, since
        if over != self.walk.before[place]:
            return (False, since) if over in self.awaited.get(place, ()) else (True, None)
        return (True, self.gap_ns) if since > 2 * self.gap_ns > 0 else (False, since)


def of_rank(view: RankView, device: DeviceView, shift: int, sent: dict[Any, Any]) -> list[Item]:
    walk, rank = Walk.of(view.columns, device.operations, view.host), view.rank
    kinds, awaited = [Kind(kind) for kind in _kinds(walk).tolist()], _awaited(view, walk)
    found = of_host(view, device, walk, shift)
    rows, begin, end = walk.rows.tolist(), walk.begin.tolist(), walk.end.tolist()
    called_ns = view.columns.ts_ns.tolist()
    held_up = Held(walk, awaited)
    gap_ns = held_up.gap_ns
    for place, row in enumerate(rows):
        item = Item(begin[place] + shift, Sort.BEGIN, (rank, "begin", row))
        over, called = (int(each[place]) for each in walk.all_waited_for)
        launch, before = int(walk.launch[place]), int(walk.before[place])
        by_launch, since_over = held_up.of(place)
        if called != NOTHING or by_launch:
            item.waits.append(((rank, "call", launch), begin[place] - called_ns[launch], Kind.LAUNCH))
        elif launch != NOTHING and called_ns[launch] <= begin[place]:
            since_call = min(held_up.latency_ns, begin[place] - called_ns[launch])
            item.waits.append(((rank, "call", launch), since_call, Kind.LAUNCH))
        if over != NOTHING and end[over] > begin[place]:
            item.waits.append(((rank, "begin", rows[over]), begin[place] - begin[over], kinds[over]))
        elif over != NOTHING and since_over is not None:
            item.waits.append(((rank, "end", rows[over]), since_over, Kind.ORDER))
        if before not in (NOTHING, over) and end[before] <= begin[place]:
            lag_ns = min(gap_ns, begin[place] - end[before])
            item.waits.append(((rank, "end", rows[before]), lag_ns, Kind.ORDER))
        item.waits += [
            ((rank, "end", rows[other]), 0.0, Kind.ORDER)
            for other in awaited.get(place, ())
            if other not in (over, before) and end[other] <= begin[place]
        ]
        last = Item(end[place] + shift, Sort.END, (rank, "end", row))
        if (rank, row) in sent:
            last.waits += [((other, "begin", at), 0.0, Kind.COLLECTIVE) for other, at in sent[rank, row]]
        else:
            last.waits.append(((rank, "begin", row), end[place] - begin[place], kinds[place]))
        found += [item, last]
    return found


def arrivals(items: list[Item]) -> list[Item]:
    """One for each collective of three ranks or more whose ends are after all begins; its ends wait for it alone."""
    at = {item.key: item.at for item in items}
    ends: dict[tuple[Key, ...], list[Item]] = {}
    for item in items:
        if len(item.waits) > 2 and {kind for _, _, kind in item.waits} == {Kind.COLLECTIVE}:
            ends.setdefault(tuple(key for key, _, _ in item.waits), []).append(item)
    found = []
    for begins, of_collective in ends.items():
        last = max(at[key] for key in begins)
        if all(end.at > last for end in of_collective):
            arrived = Item(last, Sort.ARRIVED, (begins[0][0], "arrived", begins[0][2]))
            arrived.waits = [(key, 0.0, Kind.ARRIVAL) for key in begins]
            found.append(arrived)
            for end in of_collective:
                end.waits = [(arrived.key, 0.0, Kind.COLLECTIVE)]
    return found


def found_again(
    views: list[RankView], run: Run, fixed: frozenset[int]
) -> tuple[list[int], list[int], list[list[Edge]]]:
    """When each item came to pass, its rank, and its edges; of messages only which collective it is."""
    between = matched_calls(run, views)
    sent = {}
    for collective in between.collectives:
        if collective.splits and collective.message_bytes:
            of = [(rank, call.row) for rank, call in zip(collective.ranks.tolist(), collective.calls, strict=True)]
            sent.update(dict.fromkeys(of, of))
    items: list[Item] = []
    for view in views:
        device = max(view.devices, key=lambda each: len(each.windows))
        items += of_rank(view, device, view.base_ns - between.clocks[view.rank].ahead_ns, sent)
    items += arrivals(items)
    items.sort(key=lambda item: (item.at, item.sort))
    places = {item.key: place for place, item in enumerate(items)}
    recorded = [item.at - items[0].at for item in items]
    edges = []
    for place, item in enumerate(items):
        waits = [(places.get(key, place), lag_ns, kind) for key, lag_ns, kind in item.waits]
        each = [Edge(at, lag_ns, kind) for at, lag_ns, kind in waits if at < place]
        if place in fixed:
            edges.append([edge for edge in each if edge.kind in OF_HOST])
        elif each and each[0].kind == Kind.COLLECTIVE:
            took_ns = recorded[place] - max(recorded[edge.item] for edge in each)
            begun = places[item.key[0], "begin", item.key[2]]
            alone = [Edge(begun, recorded[place] - recorded[begun], Kind.WAIT)]
            edges.append([edge.lasting(took_ns) for edge in each] if took_ns > 0 else alone)
        else:
            late = max(each, key=lambda edge: recorded[edge.item] + edge.lag_ns, default=None)
            if late is not None and recorded[late.item] + late.lag_ns < recorded[place]:
                each = [edge.lasting(recorded[place] - recorded[edge.item]) if edge is late else edge for edge in each]
            edges.append(each)
    return recorded, [item.key[0] for item in items], edges


def compared(run: Run) -> Program:
    views, _ = steady(complete([*light_views(run)], run.world_size))
    made = build(views, matched_calls(run, views), None, len(views))
    recorded, ranks, edges = found_again(views, run, made.fixed)
    assert made.recorded_ns == recorded
    assert made.ranks == ranks
    for place, (mine, other) in enumerate(zip(made.edges, edges, strict=True)):
        plain = [(edge.item, edge.lag_ns, edge.kind) for edge in mine]
        assert plain == [(edge.item, edge.lag_ns, edge.kind) for edge in other], place
    first = {rank: min(recorded[step.first] for step in made.steps if step.rank == rank) for rank in set(ranks)}
    arrived = {place for place, each in enumerate(edges) if each and each[0].kind == Kind.ARRIVAL}
    assert made.fixed == {place for place, at in enumerate(recorded) if at <= first[ranks[place]]} - arrived
    return made


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("ranks-nccl-ddp", marks=pytest.mark.thorough), "ranks-nccl-fsdp"])
def test_recorded_steps_are_built_as_one_by_one(name: str) -> None:
    compared(load([str(SAMPLES / name)], cached=False))


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "ranks", "change"),
    [
        (0, 2, "ddp.bucket_cap_mb"),
        pytest.param(22, 2, "fsdp.prefetch", marks=pytest.mark.thorough),
        (9, 2, "loader.num_workers"),
        (16, 2, "syncs.removed"),
        (22, 3, "fsdp.prefetch"),
    ],
)
def test_simulated_steps_are_built_as_one_by_one(tmp_path: Path, seed: int, ranks: int, change: str) -> None:
    machine, settings = pairs.drawn(seed, ranks, change).before
    before = machine, replace(settings, layers=2, width=512, heads=8, tokens=128)
    pairs.write_traces(before, pairs.simulated(before, traced=True, steps=3), tmp_path, steps=3)
    made = compared(load([str(tmp_path)], cached=False))
    assert (Kind.ARRIVAL in {edge.kind for each in made.edges for edge in each}) == (ranks > 2)
    assert made.run() == made.recorded_ns


@pytest.mark.long
@pytest.mark.parametrize("freed_us", [0.0, pytest.param(5.0, marks=pytest.mark.thorough)])
def test_a_full_queue_is_built_as_one_by_one(tmp_path: Path, freed_us: float) -> None:
    made = compared(load_events(tmp_path, queued(20, 300, depth=200, freed_us=freed_us)[0]))
    assert any(edge.kind == Kind.QUEUE for edges in made.edges for edge in edges)


@pytest.mark.long
@pytest.mark.parametrize("shared", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_full_queues_of_two_streams_are_built_as_one_by_one(tmp_path: Path, shared: bool) -> None:
    made = compared(load_events(tmp_path, on_two_streams(1.0, depth=100, shared=shared)[0]))
    assert any(edge.kind == Kind.QUEUE for edges in made.edges for edge in edges)


def test_a_copy_that_is_waited_for_is_built_as_one_by_one(tmp_path: Path) -> None:
    made = compared(load_events(tmp_path, [event for number in range(4) for event in reading_the_loss(number=number)]))
    assert any(edge.kind == Kind.SYNC for edges in made.edges for edge in edges)


@given(st.data())
def test_of_items_that_could_be_next_the_one_recorded_first_is(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    recorded = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    ranked = data.draw(st.permutations(range(count)))  # what is waited for comes earlier in it
    edges = [
        [Edge(ranked[before], 1.0, Kind.ORDER) for before in range(ranked.index(item)) if data.draw(st.booleans())]
        for item in range(count)
    ]
    done: list[int] = []
    while len(done) < count:
        ready = [item for item in {*range(count)} - {*done} if all(edge.item in done for edge in edges[item])]
        done.append(min(ready, key=lambda item: (recorded[item], item)))
    assert _order(recorded, Columns.of(edges)) == done


@pytest.mark.long
def test_gathers_of_units_follow_the_rule_on_a_card() -> None:
    """Two ranks of fully_shard on an H200: each gather waits for a copy out, and its own copy out for the gather."""
    run = load([str(SAMPLES / "ranks-nccl-fsdp")], cached=False)
    for view in light_views(run):
        (device,) = view.devices
        walk = Walk.of(view.columns, device.operations, view.host)
        gathering = walk.columns.named(lambda name: kernel_collective(name) == "all_gather", walk.rows)
        streams = walk.columns.queue[walk.rows]
        compute_stream = int(np.bincount(streams).argmax())
        found = gathers_of_units(walk, np.flatnonzero(gathering), compute_stream)
        assert set(found) == set(np.flatnonzero(gathering & (walk.launch != NOTHING)).tolist())
        for gather, (after, before) in found.items():
            assert after is None or walk.end[after] <= walk.begin[gather]
            assert before is not None
            assert walk.end[gather] <= walk.begin[before]
            assert streams[before] == compute_stream != streams[gather]
