"""What a step would gain if one rank, or several, took as long between collectives as the others do.

The steps of all ranks are replayed: a collective starts when its last rank arrives and then takes as long as it took; a
rank that communication blocks goes on when that collective ends; all else takes its recorded time. Replayed once as
recorded and once with the work of the late ranks between collectives scaled to the median of the others' work there,
the gain is how much sooner the first collectives of the last step follow those of the first step (of all process
groups, the last to start): what lies between the two are whole steps. A delay that makes a rank late to many
collectives counts once, and one that another rank's delay hides gains nothing.

A collective that is queued behind another starts when that one ends, however much a rank has worked by then. Work is
therefore compared between moments at which ranks have done the same: a collective at which neither the late rank nor
most of the others were queued, and the end of one that blocked both.

What a host does while its device waits is not seen: where it would delay the device without that wait, the gain is
less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from dptune.measure.communication.clocks import Clock
from dptune.measure.communication.lag import Track, Tracks
from dptune.measure.communication.matching import MatchedCollective
from dptune.measure.device.timeline import EXPOSED
from dptune.measure.intervals import Intervals
from dptune.measure.steps.windows import Step

# From the end of a collective to the start of what waited for it: the next kernel of a stream, or a thread that wakes.
_AT_ONCE_NS, _AT_ONCE_ON_CPU_NS = 10_000, 100_000
MOST_ARRIVALS = 200_000  # that are replayed; of more ranks, those that wait least: they set the pace

Key = tuple[int, str]  # rank and device


class _Event(NamedTuple):
    """An arrival at the collective `number`, or the end of a block by it; by the first rank's clock.

    `worked_ns` is the time until then in which no communication blocked the device, `blocked_ns` how long it has been
    blocked at that moment. `behind` is the collective at whose end an arrival starts at once, -1 where it waits for
    none.
    """

    time_ns: int
    kind: str
    number: int
    worked_ns: int
    blocked_ns: int
    behind: int = -1


@dataclass(frozen=True)
class _Rank:
    """The events of one device in order of time, from the start of its first step, and when it left each collective."""

    start_ns: int
    events: list[_Event]
    left_ns: dict[int, int]


@dataclass(frozen=True)
class Gain:
    """What steps gain, of the time from the first collective of the first step to the first of the last: whole steps.

    Of a single step, of the time from its first collective to the end of its last. What comes before the first
    collective is not compared: ranks start apart.
    """

    gain_ns: int
    span_ns: int

    @property
    def share(self) -> float:
        """Of that time."""
        return self.gain_ns / self.span_ns


def gain(
    late: AbstractSet[int],
    collectives: Sequence[MatchedCollective],
    clocks: Mapping[int, Clock],
    tracks: Tracks,
    windows: Mapping[Key, Sequence[Step]],
) -> Gain | None:
    """What the steps gain without the delays of these ranks; None where they share no collective with another rank."""
    return gains([late], collectives, clocks, tracks, windows)[0]


def gains(
    sets: Sequence[AbstractSet[int]],
    collectives: Sequence[MatchedCollective],
    clocks: Mapping[int, Clock],
    tracks: Tracks,
    windows: Mapping[Key, Sequence[Step]],
) -> list[Gain | None]:
    """What `gain` tells, of each of several sets of ranks."""
    places = _places(collectives)
    keys = sorted(key for key in places if windows.get(key))
    if len({key[0] for key in keys}) < 2:
        return [None] * len(sets)
    calls = {key: len(places[key]) for key in keys}
    keys = _slowest(frozenset().union(*sets), keys, calls, tracks, windows)
    origin_ns = tracks[keys[0]].base_ns + windows[keys[0]][0].start_ns  # times from there on are small: exact in floats
    ranks = {
        key: _rank(key, collectives, places[key], clocks[key[0]], tracks[key], windows[key], origin_ns) for key in keys
    }
    recorded = _replay(ranks, {})
    if recorded is None:
        return [None] * len(sets)
    return [_gain(late, ranks, recorded, collectives) for late in sets]


def _gain(
    late: AbstractSet[int], ranks: Mapping[Key, _Rank], recorded: _Replayed, collectives: Sequence[MatchedCollective]
) -> Gain | None:
    theirs = _by_moment([each for key, each in ranks.items() if key[0] not in late])
    scaled = {key: _factors_of(each, theirs) for key, each in ranks.items() if key[0] in late}
    mended = _replay(ranks, scaled) if theirs and scaled else None
    if mended is None:
        return None
    begins = _first_of_steps(collectives, recorded.begun_ns)
    if len(begins) > 1:
        span_ns, mended_ns = (
            max(replayed.begun_ns[number] for number in begins[-1])
            - max(replayed.begun_ns[number] for number in begins[0])
            for replayed in (recorded, mended)
        )
        gain_ns = span_ns - mended_ns
    else:
        first = [
            next((event.time_ns for event in each.events if event.kind == "arrival"), 0) for each in ranks.values()
        ]
        span_ns, gain_ns = recorded.end_ns - max(first), recorded.end_ns - mended.end_ns
    return Gain(max(0, round(gain_ns)), round(span_ns)) if round(span_ns) > 0 else None


def _places(collectives: Sequence[MatchedCollective]) -> dict[Key, list[tuple[int, int]]]:
    """By device, the collectives that it takes part in: number, and its place among the ranks."""
    found: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for number, collective in enumerate(collectives):
        for at, key in enumerate(zip(collective.ranks.tolist(), collective.devices, strict=True)):
            found[key].append((number, at))
    return found


def _first_of_steps(collectives: Sequence[MatchedCollective], numbers: Iterable[int]) -> list[list[int]]:
    """By step, in order, the first collective of each process group, of those numbers.

    A step has come as far on all ranks when the last of them starts.
    """
    found: dict[int, dict[tuple[int, ...], int]] = defaultdict(dict)
    for number in sorted(numbers, key=lambda number: int(collectives[number].start_ns.max())):
        collective = collectives[number]
        found[collective.step].setdefault(tuple(collective.ranks.tolist()), number)
    return [list(found[step].values()) for step in sorted(found)]


def _slowest(
    late: AbstractSet[int],
    keys: list[Key],
    calls: Mapping[Key, int],
    tracks: Tracks,
    windows: Mapping[Key, Sequence[Step]],
) -> list[Key]:
    """The devices to replay: all, or the late ranks and those that wait least; `calls` is how many calls each has."""
    most = max(2, MOST_ARRIVALS * len(keys) // max(1, sum(calls.values())))
    if len(keys) <= most:
        return keys

    def waited(key: Key) -> tuple[bool, int]:
        begin, end = windows[key][0].start_ns, windows[key][-1].end_ns
        return key[0] not in late, tracks[key].timeline.account(begin, end).exposed_waiting_ns

    return sorted(sorted(keys, key=waited)[:most])


def _rank(
    key: Key,
    collectives: Sequence[MatchedCollective],
    places: Sequence[tuple[int, int]],
    clock: Clock,
    track: Track,
    steps: Sequence[Step],
    origin_ns: int,
) -> _Rank:
    ahead_ns = clock.ahead_ns + origin_ns
    shift = track.base_ns - ahead_ns
    begin, end = steps[0].start_ns + shift, steps[-1].end_ns + shift
    spans: dict[int, tuple[int, int]] = {}
    for number, at in places:
        start = int(collectives[number].start_ns[at]) - ahead_ns
        stop = int(collectives[number].end_ns[at]) - ahead_ns
        if begin <= start and stop <= end:
            spans[number] = start, stop
    numbers = sorted(spans, key=lambda number: spans[number][1])
    ends = np.array([spans[number][1] for number in numbers], dtype=np.int64)

    on_cpu = key[1] == "cpu"
    at_once_ns = _AT_ONCE_ON_CPU_NS if on_cpu else _AT_ONCE_NS

    def behind(time_ns: int) -> int:
        """The collective that ended last, just before a moment; -1 where none did."""
        place = int(np.searchsorted(ends, time_ns, side="right")) - 1
        return numbers[place] if place >= 0 and time_ns - int(ends[place]) <= at_once_ns else -1

    def released(time_ns: int) -> int:
        """The collective that lets go what waits until then; -1 for none. On a CPU a waiting thread may wake before the
        range of the collective ends, which a thread of its own writes: as early as when data begins to move.
        """
        place = int(np.searchsorted(ends, time_ns - at_once_ns))
        number = numbers[place] if place < len(numbers) else -1
        early_ns = max(at_once_ns, collectives[number].transfer_ns) if on_cpu else at_once_ns
        return number if number >= 0 and int(ends[place]) - early_ns <= time_ns else -1

    blocks = [
        (since, until, number)
        for since, until in _exposed(track.timeline.classes, begin - shift, end - shift, shift)
        if (number := released(until)) >= 0
    ]
    moments = [(until, "block", number) for _, until, number in blocks]
    moments += [(start, "arrival", number) for number, (start, _) in spans.items()]
    moments.sort(key=lambda moment: moment[0])
    times = np.array([time for time, _, _ in moments], dtype=np.int64)
    blocked = Intervals(
        np.array([since for since, _, _ in blocks], dtype=np.int64),
        np.array([until for _, until, _ in blocks], dtype=np.int64),
    )
    worked = times - begin - blocked.before(times)
    events = [
        _Event(time, kind, number, done, _since(blocked, time), behind(time) if kind == "arrival" else -1)
        for (time, kind, number), done in zip(moments, worked.tolist(), strict=True)
    ]
    return _Rank(begin, events, {number: stop for number, (_, stop) in spans.items()})


def _exposed(classes: Mapping[str, Intervals], begin: int, end: int, shift: int) -> list[tuple[int, int]]:
    """The time of a device with communication and nothing beside it, as pairs of start and end."""
    start = np.concatenate([classes[name].start_ns for name in EXPOSED])
    found = Intervals.union(start, np.concatenate([classes[name].end_ns for name in EXPOSED])).within(begin, end)
    return list(zip((found.start_ns + shift).tolist(), (found.end_ns + shift).tolist(), strict=True))


def _since(blocked: Intervals, time_ns: int) -> int:
    """How long the block around a moment has lasted; 0 outside of all."""
    at = int(np.searchsorted(blocked.start_ns, time_ns)) - 1
    return time_ns - int(blocked.start_ns[at]) if at >= 0 and time_ns < int(blocked.end_ns[at]) else 0


_Moment = tuple[str, int]  # kind of event and number of the collective
_ByMoment = Mapping[_Moment, Sequence[tuple[int, _Event]]]  # the events of other ranks, each with a number of its rank


def _by_moment(others: Sequence[_Rank]) -> _ByMoment:
    """The arrivals of other ranks at each collective, and the ends of their last blocks by it."""
    found: dict[_Moment, list[tuple[int, _Event]]] = defaultdict(list)
    for other, rank in enumerate(others):
        for moment, event in {(event.kind, event.number): event for event in rank.events}.items():
            found[moment].append((other, event))
    return dict(found)


def _factors_of(mine: _Rank, theirs: _ByMoment) -> list[float]:
    """For each event of the one rank how much work the others did up to it, as a multiple of its own: their median.

    All work between two moments at which ranks have done the same is scaled alike. Each other rank is compared since
    the last moment that it shares; what none of them shares is no such moment. What comes before the first collective
    and after the last is left as it is: ranks start apart.
    """
    ends = {moment: at for at, event in enumerate(mine.events) if (moment := (event.kind, event.number)) in theirs}
    last = max((at for (kind, _), at in ends.items() if kind == "arrival"), default=-1)
    factors = [1.0] * len(mine.events)
    shared: dict[int, tuple[float, int]] = {}  # by other rank, at the last shared moment: scaled work, its own work
    since, scaled_ns = -1, 0.0
    for at, event in enumerate(mine.events[: last + 1]):
        moment = event.kind, event.number
        if ends.get(moment) != at or not (at == last or _level(event, theirs)):
            continue
        targets = [
            shared[other][0] + same.worked_ns - shared[other][1] for other, same in theirs[moment] if other in shared
        ]
        done = event.worked_ns - (mine.events[since].worked_ns if since >= 0 else 0)
        factor = max(0.0, median(targets) - scaled_ns) / done if targets and done > 0 else 1.0
        factors[since + 1 : at + 1] = [factor] * (at - since)
        scaled_ns += factor * done
        shared.update({other: (scaled_ns, same.worked_ns) for other, same in theirs[moment]})
        since = at
    return factors


def _level(event: _Event, others: _ByMoment) -> bool:
    """Whether ranks have done the same at an event: most others end a block by it, or were not queued on arrival."""
    same = others[event.kind, event.number]
    if event.kind == "block":
        return 2 * len(same) > len(others.get(("arrival", event.number), ()))
    return event.behind < 0 and 2 * sum(other.behind >= 0 for _, other in same) < max(1, len(same))


@dataclass
class _Walk:
    """How far one device is replayed: its next event, its last moment in replayed time, and the work done by then.

    `factors` scale the work up to each event.
    """

    events: Sequence[_Event]
    factors: Sequence[float]
    at_ns: float
    at: int = 0
    worked_ns: int = 0


@dataclass(frozen=True)
class _Replayed:
    """When each collective starts, by its number, and when the last one ends."""

    begun_ns: dict[int, float]
    end_ns: float


def _replay(ranks: Mapping[Key, _Rank], scaled: Mapping[Key, Sequence[float]]) -> _Replayed | None:
    """With the work up to each event scaled; None where devices wait in a circle, as of clocks that are wrong."""
    walks = {
        key: _Walk(each.events, scaled.get(key) or [1.0] * len(each.events), float(each.start_ns))
        for key, each in ranks.items()
    }
    missing: dict[int, int] = defaultdict(int)
    begun_ns: dict[int, int] = {}
    for each in ranks.values():
        for event in each.events:
            if event.kind == "arrival":
                missing[event.number] += 1
                begun_ns[event.number] = max(event.time_ns, begun_ns.get(event.number, event.time_ns))
    earlier_ns: dict[int, float] = dict.fromkeys(missing, float("inf"))  # how much earlier each collective starts
    held: dict[int, list[Key]] = defaultdict(list)
    ready, ended = list(walks), 0
    while ready:
        key = ready.pop()
        walk = walks[key]
        while walk.at < len(walk.events):
            event = walk.events[walk.at]
            needs = event.number if event.kind == "block" else event.behind
            if needs >= 0 and missing[needs]:
                held[needs].append(key)
                break
            own_ns = walk.at_ns + walk.factors[walk.at] * (event.worked_ns - walk.worked_ns)
            if event.kind == "block":
                own_ns = max(own_ns, event.time_ns - earlier_ns[needs])
            else:
                arrival_ns = own_ns + event.blocked_ns if needs < 0 else event.time_ns - earlier_ns[needs]
                earlier_ns[event.number] = min(earlier_ns[event.number], begun_ns[event.number] - arrival_ns)
                missing[event.number] -= 1
                if not missing[event.number]:
                    ready += held.pop(event.number, [])
            walk.at_ns, walk.worked_ns = own_ns, event.worked_ns
            walk.at += 1
        else:
            ended += 1
    ends = [stop - earlier_ns[number] for each in ranks.values() for number, stop in each.left_ns.items()]
    if ended < len(walks) or not ends:
        return None
    return _Replayed({number: begun_ns[number] - earlier for number, earlier in earlier_ns.items()}, max(ends))
