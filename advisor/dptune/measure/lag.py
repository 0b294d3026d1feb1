"""Who comes late to collectives, by how much, and what it did meanwhile.

Equal step times hide the culprit: a collective holds every rank until the last has come. So the arrivals tell: the rank
whose part of a collective begins last, and how long after the mean of the others.

What a late rank did more of is found from one collective to the next: both ends are shared by all ranks, so the account
of a rank between them, less the mean of the others', adds up to its lag exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dptune.measure.clocks import Clock
from dptune.measure.intervals import Intervals
from dptune.measure.matching import Exchange
from dptune.measure.timeline import Timeline
from dptune.measured import CLASSES

_FARTHEST = 16  # how many collectives back the last shared end is looked for


@dataclass(frozen=True, eq=False)
class Lateness:
    """The last rank to come to one collective: `late_ns` after the mean of the others, at `arrival_ns` of its clock.

    `more_ns`: by class of the account, what it did longer than the mean of the others since the end of the last
    collective that all of them had left before; empty where there is none.
    """

    step: int
    rank: int
    device: str
    arrival_ns: int
    late_ns: float
    more_ns: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Track:
    """What one device of a rank did, `base_ns` after the epoch."""

    base_ns: int
    timeline: Timeline


Tracks = Mapping[tuple[int, str], Track]  # by rank and device


def lateness(exchanges: Sequence[Exchange], clocks: Mapping[int, Clock], tracks: Tracks) -> list[Lateness]:
    """The last to come to each symmetric collective that was read on all its ranks, where they do not come at once."""
    found = []
    for same in _by_members(exchanges, clocks):
        ahead = np.array([clocks[rank].ahead_ns for rank in same[0].ranks.tolist()], dtype=np.int64)
        for at, exchange in enumerate(same):
            arrivals = exchange.start_ns - ahead
            last = int(arrivals.argmax())
            others = np.delete(arrivals, last)
            late_ns = float((arrivals[last] - others).mean())
            if late_ns <= 0:
                continue
            before = next((one for one in same[max(at - _FARTHEST, 0) : at][::-1] if _left(one, exchange)), None)
            found.append(
                Lateness(
                    step=exchange.step,
                    rank=int(exchange.ranks[last]),
                    device=exchange.devices[last],
                    arrival_ns=int(exchange.start_ns[last]),
                    late_ns=late_ns,
                    more_ns={} if before is None else _more(before, exchange, last, tracks),
                )
            )
    return found


def lags(late: Sequence[Lateness]) -> dict[tuple[int, int], int]:
    """By step and rank, how long the rank came late in all, ns: the union, since lateness to two at once is one."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in late:
        spans[one.step, one.rank].append((one.arrival_ns - round(one.late_ns), one.arrival_ns))
    return {key: Intervals.union(*np.array(times, dtype=np.int64).T).total_ns for key, times in spans.items()}


def _by_members(exchanges: Sequence[Exchange], clocks: Mapping[int, Clock]) -> list[list[Exchange]]:
    """The symmetric, complete collectives of each set of ranks whose clocks are known, in order of time."""
    groups: dict[tuple[tuple[int, ...], tuple[str, ...]], list[Exchange]] = defaultdict(list)
    for exchange in exchanges:
        ranks = tuple(exchange.ranks.tolist())
        if exchange.splits and all(rank in clocks for rank in ranks):
            groups[ranks, exchange.devices].append(exchange)
    return [sorted(group, key=lambda one: int(one.start_ns.max())) for group in groups.values()]


def _left(before: Exchange, exchange: Exchange) -> bool:
    return bool((before.end_ns <= exchange.start_ns).all())


def _more(before: Exchange, exchange: Exchange, last: int, tracks: Tracks) -> dict[str, float]:
    spent = []
    for at, (rank, device) in enumerate(zip(exchange.ranks.tolist(), exchange.devices, strict=True)):
        own = tracks[rank, device]
        window = own.timeline.account(int(before.end_ns[at]) - own.base_ns, int(exchange.start_ns[at]) - own.base_ns)
        spent.append([getattr(window, name) for name in CLASSES])
    others = np.delete(np.array(spent, dtype=np.int64), last, axis=0).mean(axis=0)
    return dict(zip(CLASSES, (np.array(spent[last], dtype=np.int64) - others).tolist(), strict=True))
