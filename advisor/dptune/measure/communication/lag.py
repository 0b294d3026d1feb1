"""Which rank arrives last at collectives, by how much, and what it did longer than the others.

Equal step times hide a straggler: a collective holds every rank until the last one arrives. Lateness is how long after
the mean of the others a rank arrives. A delay before several collectives makes the rank late to each of them: it counts
once. Only what comes on top of the lateness counted before counts again, after what communication has held up the
others longer than the rank since: a rank that was waited for starts level with the others. That is exposed
communication of any kind: behind a collective that starts late, those after it are queued, and the others spend the
delay in their transfers.

What a late rank did longer is its account between two collectives, without exposed communication, less the median of
the others'. The part of its lateness for which it was held up itself, by a late rank of another group, is not its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dptune.measure.communication.clocks import Clock
from dptune.measure.communication.matching import MatchedCollective
from dptune.measure.device.timeline import EXPOSED, Timeline
from dptune.measure.intervals import Ints
from dptune.measured import CLASSES

Floats = NDArray[np.float64]
_HELD_UP = [CLASSES.index(name) for name in EXPOSED]


@dataclass(frozen=True, eq=False)
class Lateness:
    """The last rank to arrive at one collective, at `arrival_ns` of its clock, `late_ns` after the mean of the others.

    `added_ns` is what of that was not counted at an earlier collective, and for which no late rank of another group
    held it up. `more_ns` splits what was not counted by class of the account: what the rank did longer than the others
    (their median), in proportion: since the collective before, or that at which it was late before and whose delay is
    not over; empty at the first, and where nothing was added.
    """

    step: int
    rank: int
    device: str
    arrival_ns: int
    late_ns: float
    added_ns: float
    members: tuple[int, ...] = ()
    more_ns: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Track:
    """What one device of a rank did, `base_ns` after the epoch."""

    base_ns: int
    timeline: Timeline


Tracks = Mapping[tuple[int, str], Track]  # by rank and device


def comparable(collectives: Sequence[MatchedCollective], clocks: Mapping[int, Clock]) -> list[MatchedCollective]:
    """The symmetric collectives read on at least two ranks, all of which have a known clock.

    A rank that was not read may arrive later still: then lateness and waiting are lower bounds.
    """
    return [
        collective
        for collective in collectives
        if collective.symmetric and all(rank in clocks for rank in collective.ranks.tolist())
    ]


def lateness(collectives: Sequence[MatchedCollective], clocks: Mapping[int, Clock], tracks: Tracks) -> list[Lateness]:
    """The last rank to arrive at each comparable collective, where the ranks do not arrive at once.

    A rank whose lag in a step is no longer than its clock may be off is not late in it.
    """
    found = []
    off_ns = max((clocks[rank].off_ns for collective in collectives for rank in collective.ranks.tolist()), default=0)
    for same in _by_members(collectives):
        found += _of_group(same, clocks, tracks)
    by_step = lags(found)
    return [late_arrival for late_arrival in found if by_step[late_arrival.step, late_arrival.rank] > off_ns]


def lags(late: Sequence[Lateness]) -> dict[tuple[int, int], int]:
    """By step and rank, how late the rank was in all, ns: each delay once.

    A rank of several groups arrives late in each of them after one delay: the largest sum over a group counts.
    """
    sums: dict[tuple[int, int], dict[tuple[int, ...], float]] = defaultdict(lambda: defaultdict(float))
    for late_arrival in late:
        sums[late_arrival.step, late_arrival.rank][late_arrival.members] += late_arrival.added_ns
    return {key: round(max(groups.values())) for key, groups in sums.items()}


def _by_members(collectives: Sequence[MatchedCollective]) -> list[list[MatchedCollective]]:
    """The collectives of each set of ranks, in order of time."""
    groups: dict[tuple[tuple[int, ...], tuple[str, ...]], list[MatchedCollective]] = defaultdict(list)
    for collective in collectives:
        groups[tuple(collective.ranks.tolist()), collective.devices].append(collective)
    return [
        sorted(group, key=lambda group_collective: int(group_collective.start_ns.max())) for group in groups.values()
    ]


def _of_group(same: Sequence[MatchedCollective], clocks: Mapping[int, Clock], tracks: Tracks) -> list[Lateness]:
    """Lateness to the collectives of one set of ranks."""
    ranks = same[0].ranks.tolist()
    ahead = np.array([clocks[rank].ahead_ns for rank in ranks], dtype=np.int64)
    arrivals = np.array([collective.start_ns for collective in same], dtype=np.int64) - ahead
    last = arrivals.argmax(axis=1)
    spent = _spent(same, tracks)
    waited_ns = _waited_for(spent[..., _HELD_UP].sum(axis=-1))
    counted: dict[int, tuple[int, float]] = {}  # by rank, where lateness was last counted, and how much of it
    found = []
    for at, rank in enumerate(last.tolist()):
        late_ns = float(_less_others(arrivals[at][:, np.newaxis], rank)[0])
        if late_ns <= 0:
            continue
        since, before_ns = counted.get(rank, (0, 0.0))
        before_ns = max(0.0, before_ns - float(waited_ns[at, rank] - waited_ns[since, rank]))
        added_ns = max(0.0, late_ns - before_ns)
        since = since if before_ns else max(at - 1, 0)
        more = _longer(spent[at] - spent[since] if at else spent[at], rank, added_ns)
        if added_ns:
            counted[rank] = at, late_ns
        longer_ns = float(more.sum())
        known = at > 0 and added_ns > 0 and longer_ns > 0
        held_up_ns = float(more[_HELD_UP].sum()) * added_ns / longer_ns if longer_ns > 0 else 0.0
        found.append(
            Lateness(
                step=same[at].step,
                rank=ranks[rank],
                device=same[at].devices[rank],
                arrival_ns=int(same[at].start_ns[rank]),
                late_ns=late_ns,
                added_ns=max(0.0, added_ns - held_up_ns),
                members=tuple(ranks),
                more_ns=dict(zip(CLASSES, (more * added_ns / longer_ns).tolist(), strict=True)) if known else {},
            )
        )
    return found


def _waited_for(waiting: Ints) -> Floats:
    """By collective and rank how long the others had waited for the rank in all until then, the mean of them.

    `waiting` is how long communication had held up each rank itself.
    """
    since = np.diff(waiting, axis=0, prepend=waiting[:1]).astype(np.float64)
    others = (since.sum(axis=1, keepdims=True) - since) / (since.shape[1] - 1)
    return np.asarray(np.maximum(others - since, 0.0).cumsum(axis=0), dtype=np.float64)


def _longer(between: Ints, rank: int, added_ns: float) -> Floats:
    """By class what a rank did longer than the median of the others, of what ranks did by class.

    It waits for others because these are late; only what its work leaves of its lateness is that it waits elsewhere.
    """
    more = np.asarray(between[rank] - np.median(np.delete(between, rank, axis=0), axis=0), dtype=np.float64)
    held_up, longer_ns = np.maximum(more[_HELD_UP], 0.0), max(0.0, float(more[_HELD_UP].sum()))
    more[_HELD_UP] = 0.0
    if longer_ns:
        more[_HELD_UP] = held_up / held_up.sum() * min(longer_ns, max(0.0, added_ns - float(more.sum())))
    return more


def _spent(same: Sequence[MatchedCollective], tracks: Tracks) -> Ints:
    """Nanoseconds from the start of each track to each arrival: collectives x ranks x classes."""
    arrivals = np.array([collective.start_ns for collective in same], dtype=np.int64)
    spent = np.zeros((*arrivals.shape, len(CLASSES)), dtype=np.int64)
    for at, (rank, device) in enumerate(zip(same[0].ranks.tolist(), same[0].devices, strict=True)):
        track = tracks[rank, device]
        for number, name in enumerate(CLASSES):
            spent[:, at, number] = track.timeline.classes[name].before(arrivals[:, at] - track.base_ns)
    return spent


def _less_others(values: Ints, rank: int) -> Floats:
    """Of values by rank and anything, those of one rank less the mean of the others."""
    less = values - values[rank]  # small numbers: exact in a float64
    return np.asarray(-less.sum(axis=0) / (len(values) - 1), dtype=np.float64)
