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
from numpy.typing import NDArray

from dptune.measure.device.timeline import Timeline
from dptune.measure.exchange.clocks import Clock
from dptune.measure.exchange.matching import Exchange
from dptune.measure.intervals import Intervals, Ints
from dptune.measured import CLASSES

Floats = NDArray[np.float64]
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


def comparable(exchanges: Sequence[Exchange], clocks: Mapping[int, Clock]) -> list[Exchange]:
    """The symmetric collectives that were read on all their ranks, whose clocks are known."""
    return [one for one in exchanges if one.splits and all(rank in clocks for rank in one.ranks.tolist())]


def lateness(exchanges: Sequence[Exchange], clocks: Mapping[int, Clock], tracks: Tracks) -> list[Lateness]:
    """The last to come to each comparable collective, where they do not come at once.

    Whose lag in a step is no longer than its clock may be off is not late in it.
    """
    found = []
    off_ns = max((clocks[rank].off_ns for one in exchanges for rank in one.ranks.tolist()), default=0)
    for same in _by_members(exchanges):
        ahead = np.array([clocks[rank].ahead_ns for rank in same[0].ranks.tolist()], dtype=np.int64)
        arrivals = np.array([one.start_ns for one in same], dtype=np.int64) - ahead
        last = arrivals.argmax(axis=1)
        late = _less_others(arrivals[..., np.newaxis], last)[:, 0]
        before = [_before(same, at) for at in range(len(same))]
        more = _less_others(_spent(same, before, tracks), last)
        for at in np.flatnonzero(late > 0).tolist():
            exchange, rank = same[at], int(last[at])
            found.append(
                Lateness(
                    step=exchange.step,
                    rank=int(exchange.ranks[rank]),
                    device=exchange.devices[rank],
                    arrival_ns=int(exchange.start_ns[rank]),
                    late_ns=float(late[at]),
                    more_ns={} if before[at] is None else dict(zip(CLASSES, more[at].tolist(), strict=True)),
                )
            )
    by_step = lags(found)
    return [one for one in found if by_step[one.step, one.rank] > off_ns]


def lags(late: Sequence[Lateness]) -> dict[tuple[int, int], int]:
    """By step and rank, how long the rank came late in all, ns: the union, since lateness to two at once is one."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in late:
        spans[one.step, one.rank].append((one.arrival_ns - round(one.late_ns), one.arrival_ns))
    return {key: Intervals.union(*np.array(times, dtype=np.int64).T).total_ns for key, times in spans.items()}


def _by_members(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """The collectives of each set of ranks, in order of time."""
    groups: dict[tuple[tuple[int, ...], tuple[str, ...]], list[Exchange]] = defaultdict(list)
    for exchange in exchanges:
        groups[tuple(exchange.ranks.tolist()), exchange.devices].append(exchange)
    return [sorted(group, key=lambda one: int(one.start_ns.max())) for group in groups.values()]


def _before(same: Sequence[Exchange], at: int) -> Exchange | None:
    """The last collective that all ranks had left before any came to this one."""
    starts = same[at].start_ns
    return next((one for one in same[max(at - _FARTHEST, 0) : at][::-1] if (one.end_ns <= starts).all()), None)


def _spent(same: Sequence[Exchange], before: Sequence[Exchange | None], tracks: Tracks) -> Ints:
    """Nanoseconds between the collective before and this one: exchanges x ranks x classes; 0 where there is none."""
    ends = np.array([one.start_ns for one in same], dtype=np.int64)
    starts = np.array([one.start_ns if last is None else last.end_ns for one, last in zip(same, before, strict=True)])
    spent = np.zeros((*ends.shape, len(CLASSES)), dtype=np.int64)
    for at, (rank, device) in enumerate(zip(same[0].ranks.tolist(), same[0].devices, strict=True)):
        own = tracks[rank, device]
        for each, name in enumerate(CLASSES):
            lengths = own.timeline.classes[name].lengths(starts[:, at] - own.base_ns, ends[:, at] - own.base_ns)
            spent[:, at, each] = lengths
    return spent


def _less_others(values: Ints, last: Ints) -> Floats:
    """Of values by exchange, rank and anything, those of the last rank less the mean of the others."""
    chosen = np.take_along_axis(values, last[:, np.newaxis, np.newaxis], axis=1)[:, 0]
    others = (values - values[:, :1]).sum(axis=1) - (chosen - values[:, 0])  # small numbers: exact in a float64
    return np.asarray(chosen - values[:, 0] - others / (values.shape[1] - 1), dtype=np.float64)
