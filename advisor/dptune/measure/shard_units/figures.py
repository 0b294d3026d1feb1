"""Figures of each unit in each pass: sizes, times, and the compute of the neighbouring unit that could overlap them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from dptune.measure.communication.calls import Call
from dptune.measure.communication.matching import MatchedCollective, RankCalls
from dptune.measure.device.phases import OPTIMIZER, DeviceTimeline, Phased
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Mask
from dptune.measure.shard_units.events import UnitCall, UnitEvent, UnitEvents, calls_of_units, frees, starts
from dptune.measure.shard_units.flat_events import UNEVEN, flat_events
from dptune.measure.shard_units.groups import groups_of
from dptune.measure.shard_units.in_flight import InFlight
from dptune.measure.shard_units.policies import flat_names, policies
from dptune.measure.shard_units.unseen import PASSES, no_starts, unseen
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Missing, Pass, ShardUnits, UnitFigures
from dptune.measured.shard_units import NOT_SHARDED, SHARDED
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import Facts
from dptune.trace.kernels import Work

_NO_SIZE = "the trace does not show the size of each message"
_NO_FREEING = "the trace does not show when units are freed, or how large they are"
_NO_STARTS = "no ranges mark where units start this pass"
_NOT_GATHERED = "only all-gathers are issued ahead"
_NOT_WAITED = "no other rank was matched"
_NOT_SPLIT = "calls of several ranks could not be matched, so exposed times include waiting for late ranks"
_MOST_UNSPLIT = 0.1  # of the exposed time: with more of which it is not known whether ranks wait, waiting is unknown
_GATHER, _REDUCE = "all_gather", "reduce_scatter"

_Key = tuple[Pass, str, str]  # the pass, the unit, the kind
_Event = tuple[int, str, int]  # rank, device, row


@dataclass
class _Row:
    """What is added up of one unit, pass and kind."""

    calls: list[Call] = field(default_factory=list)
    positions_ns: list[int] = field(default_factory=list)
    last: Counter[int] = field(default_factory=Counter)
    hidden_ns: int = 0
    exposed_ns: int = 0
    waiting_ns: int = 0
    unsplit_ns: int = 0
    neighbour_ns: int = 0
    ahead: int = 0


def shard_units(
    spent: Sequence[DeviceTimeline],
    phased: Phased | str,
    ranks: Sequence[RankCalls],
    collectives: Sequence[MatchedCollective],
    facts: Mapping[int, Facts],
) -> tuple[ShardUnits | None, str]:
    """The units of every rank, else None and the reason. `ranks`: the collectives in steps."""
    try:
        names = flat_names(facts)
        found = [_events_of(view, device, ranks, names) for view, device, _ in spent]
    except Missing as missing:
        return None, missing.reason
    counts = {len({start.unit for start in events.starts}) for events in found if events.numbered}
    if len(counts) > 1:
        return None, UNEVEN
    gaps = unseen(spent, found, ranks, facts)
    return _figures_of(spent, found, phased, collectives, facts, gaps), only_recorded(facts, NOT_SHARDED)


def only_recorded(facts: Mapping[int, Facts], why: str) -> str:
    """Why there are no figures, where the script shards its model."""
    return f"{SHARDED} {why}" if policies(facts) else why


def _events_of(view: RankView, device: DeviceView, ranks: Sequence[RankCalls], names: Sequence[str]) -> UnitEvents:
    """What units of either FSDP do on a device; of a trace with both, those of fully_shard."""
    of_device = [each for each in ranks if (each.rank, each.device) == (view.rank, device.operations.device)]
    calls = {call.row: call for each in of_device for call in each.calls}
    if sent := calls_of_units(view, device, calls):
        return UnitEvents(starts(view.columns, view.steps), frees(view.columns, view.steps), sent)
    return flat_events(view, device, calls, names) or UnitEvents([], [], [])


def _figures_of(
    spent: Sequence[DeviceTimeline],
    found: Sequence[UnitEvents],
    phased: Phased | str,
    collectives: Sequence[MatchedCollective],
    facts: Mapping[int, Facts],
    gaps: list[str],
) -> ShardUnits | None:
    """`found`: what the units of each device do; `gaps`: what of it the traces do not show."""
    rows: defaultdict[_Key, _Row] = defaultdict(_Row)
    last = _last_ranks(collectives)
    depths: Counter[Pass] = Counter()
    sizes, reduced = _recorded_sizes(facts), _reduced_sizes(facts)
    computed: Counter[Pass] = Counter()
    held: list[int] = []
    unstarted = {each for events in found for each in PASSES if no_starts(events, each)}
    for at, (spent_by, (begun, freed, sent, _)) in enumerate(zip(spent, found, strict=True)):
        view, device, _ = spent_by
        name = device.operations.device
        if not sent:
            continue
        sizes = sizes or _sizes(sent)
        updating = None if isinstance(phased, str) else phased.operations[at] == OPTIMIZER
        compute_ns = _compute(spent_by, begun, updating)
        for start, ns in zip(begun, compute_ns, strict=True):
            computed[start.direction] += ns
        for each in sent:
            row = rows[each.direction, each.unit, each.call.kind]
            row.calls.append(each.call)
            row.positions_ns.append(each.time_ns - view.steps[each.step].start_ns)
            if (rank := last.get((view.rank, name, each.call.row))) is not None:
                row.last[rank] += 1
            neighbour, depth = _neighbour(each, begun)
            row.ahead += depth > 0
            row.neighbour_ns += 0 if neighbour is None else compute_ns[neighbour]
            if each.call.kind == _GATHER:
                depths[each.direction] = max(depths[each.direction], depth)
        _add_times(rows, spent_by, sent)
        if freed:
            held.append(_held_bytes(sent, freed, sizes))
    if not rows:
        return None
    steps = sum(len(device.windows) for (_, device, _), events in zip(spent, found, strict=True) if events.calls)
    order = sorted(rows, key=lambda key: (key[0] == "backward", median(rows[key].positions_ns), key))
    sized = {unit for _, unit, _ in rows} <= sizes.keys()
    return ShardUnits.of(
        {
            "held_bytes": (max(held, default=None) if sized else None, _NO_FREEING),
            "whole_bytes": (sum(sizes.values()) if sized else None, _NO_SIZE),
        },
        policies=policies(facts),
        groups=groups_of(spent, [events.calls for events in found], collectives),
        numbered=any(events.numbered for events in found),
        rows=[
            _figures(key, rows[key], steps, {_GATHER: sizes, _REDUCE: reduced}, starts_seen=key[0] not in unstarted)
            for key in order
        ],
        rank_steps=steps,
        ranks=sorted({view.rank for (view, _, _), events in zip(spent, found, strict=True) if events.calls}),
        unseen=gaps,
        forward_depth=depths["forward"],
        backward_depth=depths["backward"],
        forward_compute_ns=computed["forward"],
        backward_compute_ns=computed["backward"],
    )


def _last_ranks(collectives: Sequence[MatchedCollective]) -> dict[_Event, int]:
    """The rank that came last to each symmetric collective, for each of its events: the call on it is the shortest."""
    found: dict[_Event, int] = {}
    for collective in collectives:
        if collective.symmetric:
            last = int(collective.ranks[np.argmin(collective.end_ns - collective.start_ns)])
            for call, rank, device in zip(collective.calls, collective.ranks.tolist(), collective.devices, strict=True):
                found[rank, device, call.row] = last
    return found


def _recorded_sizes(facts: Mapping[int, Facts]) -> dict[str, int]:
    """Bytes of each unit, gathered, as the lowest rank recorded them."""
    return _sizes_of(facts[min(facts)].fsdp if facts else [])


def _reduced_sizes(facts: Mapping[int, Facts]) -> dict[str, int]:
    """Bytes of the gradients of each unit that reduces them in the dtype that it gathers."""
    shards = facts[min(facts)].fsdp if facts else []
    return _sizes_of([fsdp for fsdp in shards if fsdp.reduce_dtype in (None, fsdp.parameter_dtype)])


def _sizes_of(shards: Sequence[FsdpFacts]) -> dict[str, int]:
    return {name: size for fsdp in shards for name, size in zip(fsdp.names, fsdp.gathered_bytes, strict=False)}


def _sizes(sent: Sequence[UnitCall]) -> dict[str, int]:
    gathers = [each for each in sent if each.call.kind == _GATHER]
    return {each.unit: each.call.message_bytes for each in gathers if each.call.message_bytes is not None}


def _compute(spent_by: DeviceTimeline, begun: Sequence[UnitEvent], updating: Mask | None) -> list[int]:
    """Compute of each start of a unit, ns: what the host launches until the next start, but not the optimizer's.

    On a CPU, what runs until then.
    """
    if not begun:
        return []
    view, device, timeline = spent_by
    columns, operations = view.columns, device.operations
    begin_ns = np.array([start.time_ns for start in begun], dtype=np.int64)
    until_ns = np.array([view.steps[start.step].end_ns for start in begun], dtype=np.int64)
    until_ns[:-1] = np.minimum(until_ns[:-1], begin_ns[1:])
    if operations.on_cpu:
        rows = operations.rows[:0] if updating is None else operations.rows[updating]
        updates = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
        return [int(ns) for ns in (timeline.classes["compute_ns"] - updates).lengths(begin_ns, until_ns)]
    computes = (operations.work == Work.COMPUTE) & (operations.launch != UNLAUNCHED)
    if updating is not None:
        computes &= ~updating
    rows, launched_ns = operations.rows[computes], columns.ts_ns[operations.launch[computes]]
    at = np.searchsorted(begin_ns, launched_ns, side="right") - 1
    inside = (at >= 0) & (launched_ns < until_ns[at])
    rows, at = rows[inside], at[inside]
    order = np.argsort(at, kind="stable")
    numbers, first = np.unique(at[order], return_index=True)
    found = [0] * len(begun)
    parts = np.split(rows[order], first[1:])  # one, which is empty, where nothing computes
    for number, of_start in zip(numbers.tolist(), parts, strict=False):
        found[number] = Intervals.union(columns.ts_ns[of_start], columns.ends(of_start)).total_ns
    return found


def _neighbour(call: UnitCall, begun: Sequence[UnitEvent]) -> tuple[int | None, int]:
    """The start of the unit whose compute could overlap a call, and how many units a gather was issued ahead.

    For an all-gather that is the unit before the one that needs it, in the same step, but not that unit itself, which
    has just been freed; else the next one to start.
    """
    after = bisect_right(begun, call.time_ns, key=lambda start: start.time_ns)
    if call.call.kind == _GATHER:
        own = _own_start(call, begun, after)
        if own is None:
            return None, 0
        before = own - 1 if own and begun[own - 1].step == call.step and begun[own - 1].unit != call.unit else None
        ahead = {start.time_ns for start in begun[after : own + 1]}  # units that return one tensor start together
        return before, max(0, len(ahead) - call.behind)
    return (after if after < len(begun) and begun[after].step == call.step else None), 0


def _own_start(call: UnitCall, begun: Sequence[UnitEvent], after: int) -> int | None:
    """The start that needs a gather: the one that it is issued in, else the next of its unit in that pass."""
    for at in range(after - 1, -1, -1):
        if begun[at].time_ns < begun[after - 1].time_ns:
            break
        if (begun[at].unit, begun[at].direction) == (call.unit, call.direction):
            return at
    for at in range(after, len(begun)):
        start = begun[at]
        if start.step != call.step:
            return None
        if (start.unit, start.direction) == (call.unit, call.direction):
            return at
    return None


def _add_times(rows: Mapping[_Key, _Row], spent_by: DeviceTimeline, sent: Sequence[UnitCall]) -> None:
    """Hidden and exposed time of each row."""
    flight = InFlight(spent_by)
    places: defaultdict[_Key, list[int]] = defaultdict(list)
    for each in sent:
        places[each.direction, each.unit, each.call.kind].append(each.place)
    for key, of_row in places.items():
        whole_ns, hidden_ns, waiting_ns, unsplit_ns = flight.lengths_ns(
            of_row, "compute_ns", "exposed_waiting_ns", "exposed_unsplit_ns"
        )
        rows[key].hidden_ns += hidden_ns
        rows[key].exposed_ns += whole_ns - hidden_ns
        rows[key].waiting_ns += waiting_ns
        rows[key].unsplit_ns += unsplit_ns


def _held_bytes(sent: Sequence[UnitCall], freed: Sequence[UnitEvent], sizes: Mapping[str, int]) -> int:
    """The most gathered bytes at once: from the issuing of an all-gather until the unit is freed.

    A unit that is not gathered again in a step's backward pass is not freed at the end of the forward pass.
    """
    gathers = [each for each in sent if each.call.kind == _GATHER]
    again = {(each.step, each.unit) for each in gathers if each.direction == "backward"}
    gathered = [(each.time_ns, each.unit, True) for each in gathers]
    given_up = [
        (event.time_ns, event.unit, False)
        for event in freed
        if event.direction == "backward" or (event.step, event.unit) in again
    ]
    held: set[str] = set()
    most = 0
    for _, unit, takes in sorted(gathered + given_up):
        held = held | {unit} if takes else held - {unit}
        most = max(most, sum(sizes.get(each, 0) for each in held))
    return most


def _figures(
    key: _Key, row: _Row, steps: int, sizes: Mapping[str, Mapping[str, int]], *, starts_seen: bool
) -> UnitFigures:
    """`sizes`: bytes by kind and unit, where the trace does not show them."""
    direction, unit, kind = key
    messages = {call.message_bytes for call in row.calls if call.message_bytes is not None}
    size = max(messages, default=sizes.get(kind, {}).get(unit))
    ahead = row.ahead / len(row.calls) if kind == _GATHER else None
    last = row.last.most_common(1)
    split = row.unsplit_ns <= _MOST_UNSPLIT * row.exposed_ns
    return UnitFigures.of(
        {
            "message_bytes": (size, _NO_SIZE),
            "waiting_ns": (row.waiting_ns if split else None, _NOT_SPLIT),
            "neighbour_compute_ns": (row.neighbour_ns if starts_seen else None, _NO_STARTS),
            "prefetched_share": (ahead, _NOT_GATHERED),
            "waited_for": (last[0][0] if last else None, _NOT_WAITED),
        },
        unit=unit,
        direction=direction,
        kind=kind,
        calls_per_step=len(row.calls) / steps,
        median_ns=int(median(call.dur_ns for call in row.calls)),
        shortest_ns=min(call.dur_ns for call in row.calls),
        hidden_ns=row.hidden_ns,
        exposed_ns=row.exposed_ns,
    )
