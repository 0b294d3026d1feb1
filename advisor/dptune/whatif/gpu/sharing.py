"""Collectives of a rank that transfer at the same time share its links.

Each of n then takes n times as long, or less where the recording shows that. A recorded duration holds what the
collective shared as recorded; with a change others may run beside it, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from statistics import median

from dptune.whatif.gpu.reductions import Matched, Places

_ALONE, _BESIDE = 0.05, 0.5  # of its duration that a collective shares: less is alone, more shows what sharing takes
_HALVINGS = 10  # until what another adds is as near as 0.1 %


@dataclass(frozen=True)
class Transfer:
    """A collective: the places of its begins and ends, and how long it takes alone / as recorded."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]
    ranks: frozenset[int]
    alone: float = 1.0

    def moved(self, places: Sequence[int]) -> Transfer:
        """The same where each item has another place."""
        begins, ends = (tuple(places[item] for item in items) for items in (self.begins, self.ends))
        return Transfer(begins, ends, self.ranks, self.alone)


def durations(
    starts: Sequence[float], alone: Sequence[float], ranks: Sequence[frozenset[int]], slowed: float = 1.0
) -> list[float]:
    """How long transfers take that start at these moments and alone would take so long, ns.

    `slowed`: what each other transfer of a rank adds, as a share of the time alone. 1: links are shared evenly.
    """
    agenda = sorted((start, number) for number, start in enumerate(starts))
    left, ends = list(alone), list(starts)
    speed: dict[int, float] = {}
    count: Counter[int] = Counter()
    version = [0] * len(starts)
    finishing: list[tuple[float, int, int]] = []
    now, place = 0.0, 0
    while place < len(agenda) or speed:
        while finishing and version[finishing[0][1]] != finishing[0][2]:
            heappop(finishing)
        arrives = place < len(agenda) and (not finishing or agenda[place][0] < finishing[0][0])
        at = agenda[place][0] if arrives else finishing[0][0]
        for number, rate in speed.items():
            left[number] -= (at - now) * rate
        now = at
        number = agenda[place][1] if arrives else finishing[0][1]
        if arrives:
            place += 1
            speed[number] = 0.0
            count.update(ranks[number])
        else:
            ends[number] = now
            del speed[number]
            version[number] += 1
            count.subtract(ranks[number])
        for other in speed:
            if other == number or not ranks[other].isdisjoint(ranks[number]):
                beside = max(count[rank] for rank in ranks[other]) - 1
                speed[other] = 1 / (1 + slowed * beside)
                version[other] += 1
                heappush(finishing, (now + max(0.0, left[other]) / speed[other], other, version[other]))
    return [end - start for start, end in zip(starts, ends, strict=True)]


def shared_times(
    starts: Sequence[float], took: Sequence[float], ranks: Sequence[frozenset[int]]
) -> list[dict[int, float]]:
    """By transfer for how long so many others run on that of its ranks on which most do."""
    borders = sorted(
        [(start, 1, number) for number, start in enumerate(starts)]
        + [(start + took[number], 0, number) for number, start in enumerate(starts)]
    )
    found: list[dict[int, float]] = [{} for _ in starts]
    count: Counter[int] = Counter()
    running: set[int] = set()
    before = 0.0
    for at, begins, number in borders:
        if at > before:
            for other in running:
                beside = max(count[rank] for rank in ranks[other]) - 1
                found[other][beside] = found[other].get(beside, 0.0) + at - before
        before = at
        if begins:
            running.add(number)
            count.update(ranks[number])
        else:
            running.remove(number)
            count.subtract(ranks[number])
    return found


def slowdown(kinds: Sequence[tuple[str, int]], shared: Sequence[Mapping[int, float]]) -> float:
    """What another transfer adds to one of the same kind and bytes that was seen alone and beside others; else 1.

    `shared`: by transfer for how long so many others run.
    """
    alone: dict[tuple[str, int], list[float]] = {}
    parts = [1 - times.get(0, 0.0) / max(1.0, sum(times.values())) for times in shared]
    for kind, times, part in zip(kinds, shared, parts, strict=True):
        if part <= _ALONE:
            alone.setdefault(kind, []).append(sum(times.values()))
    seen = [
        _added(median(alone[kind]), times)
        for kind, times, part in zip(kinds, shared, parts, strict=True)
        if part >= _BESIDE and kind in alone
    ]
    return median(seen) if seen else 1.0


def _added(alone: float, times: Mapping[int, float]) -> float:
    """The same of one transfer, which alone takes so long: what each other adds, 0 to 1."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if alone_ns(times, middle) > alone else (low, middle)
    return (low + high) / 2


def alone_ns(times: Mapping[int, float], slowed: float) -> float:
    """How long a transfer takes alone that takes so long beside so many others."""
    return sum(ns / (1 + slowed * beside) for beside, ns in times.items())


def transfers(
    matched: Sequence[Matched],
    places: Places,
    recorded_ns: Sequence[int],
    streams: Mapping[tuple[int, int], int],
) -> tuple[list[Transfer], float]:
    """Those that may share links, and what another adds; none where each rank has its collectives on one stream.

    `streams` are by rank and row.
    """
    used: dict[int, set[int]] = {}
    for (rank, _), stream in streams.items():
        used.setdefault(rank, set()).add(stream)
    if all(len(each) < 2 for each in used.values()):
        return [], 1.0
    found, kinds, starts, took = [], [], [], []
    for collective in matched:
        begins = tuple(places[rank, "begin", row] for rank, row in collective.operations)
        ends = tuple(places[rank, "end", row] for rank, row in collective.operations)
        start = max(recorded_ns[begin] for begin in begins)
        duration = max(recorded_ns[end] for end in ends) - start
        if duration > 0:
            found.append(Transfer(begins, ends, frozenset(rank for rank, _ in collective.operations)))
            kinds.append((collective.kind, collective.message_bytes))
            starts.append(float(start))
            took.append(float(duration))
    ranks = [transfer.ranks for transfer in found]
    shared = shared_times(starts, took, ranks)
    slowed = slowdown(kinds, shared)
    shares = [alone_ns(times, slowed) / ns for times, ns in zip(shared, took, strict=True)]
    return [replace(transfer, alone=share) for transfer, share in zip(found, shares, strict=True)], slowed
