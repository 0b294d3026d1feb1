"""How late every rank arrives at collectives by work of its own, step by step.

`communication/lag.py` follows the last rank to arrive. Among many ranks several are late at once, and all but the last
hide behind it: here each rank is compared with the median of the others. As there, a delay before several collectives
counts once, and time for which a rank was itself held up in other collectives is not its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.communication.clocks import Clock
from dptune.measure.communication.lag import Floats, Tracks
from dptune.measure.communication.matching import MatchedCollective
from dptune.measure.device.timeline import EXPOSED
from dptune.measure.intervals import Ints

_FEW = 8  # ranks up to which each is compared with the median of the others; of more, one rank does not move the median


@dataclass(frozen=True, eq=False)
class Lags:
    """`lag_ns` by rank and step, float64: how late each rank of `ranks` is in each step of `steps`."""

    ranks: list[int]
    steps: list[int]
    lag_ns: Floats

    @property
    def mean_ns(self) -> Floats:
        """By rank, the mean over steps."""
        return np.asarray(self.lag_ns.mean(axis=1), dtype=np.float64)


def own_lags(collectives: Sequence[MatchedCollective], clocks: Mapping[int, Clock], tracks: Tracks) -> Lags:
    """From comparable collectives. A rank of several groups arrives late in each after one delay: the largest counts.

    Lags no longer than the clocks may be off are 0.
    """
    groups: dict[tuple[tuple[int, ...], tuple[str, ...]], list[MatchedCollective]] = defaultdict(list)
    for collective in collectives:
        groups[tuple(collective.ranks.tolist()), collective.devices].append(collective)
    ranks = sorted({rank for members, _ in groups for rank in members})
    steps = sorted({collective.step for collective in collectives})
    place, number = {rank: at for at, rank in enumerate(ranks)}, {step: at for at, step in enumerate(steps)}
    largest = np.zeros((len(ranks), len(steps)))
    for (members, _), same in groups.items():
        same = sorted(same, key=lambda collective: int(collective.start_ns.max()))
        added = _added(same, clocks, tracks)
        sums = np.zeros((len(steps), len(members)))
        np.add.at(sums, np.array([number[collective.step] for collective in same]), added)
        rows = [place[rank] for rank in members]
        largest[rows] = np.maximum(largest[rows], sums.T)
    off_ns = max((clocks[rank].off_ns for rank in ranks), default=0)
    return Lags(ranks, steps, np.where(largest > off_ns, largest, 0.0))


def _added(same: Sequence[MatchedCollective], clocks: Mapping[int, Clock], tracks: Tracks) -> Floats:
    """By collective of one group and rank, the lateness that was not counted at an earlier one, and is its own.

    Between two arrivals a rank is held up in the first collective, while it waits for later ranks, and elsewhere, in
    collectives of other groups. Ranks that waited less than the others are level with them again. Those held up longer
    elsewhere are late because of other ranks.
    """
    ranks = same[0].ranks.tolist()
    ahead_ns = np.array([clocks[rank].ahead_ns for rank in ranks], dtype=np.int64)
    arrivals = np.array([collective.start_ns for collective in same], dtype=np.int64)
    ends = np.array([collective.end_ns for collective in same], dtype=np.int64)
    at_arrival, at_end = _held_up(same, arrivals, tracks), _held_up(same, ends, tracks)
    in_all = np.diff(at_arrival, axis=0, prepend=at_arrival[:1])
    elsewhere = at_arrival - np.concatenate((np.zeros_like(at_end[:1]), at_end[:-1]))
    level_again = np.maximum(-_above_others(in_all.astype(np.float64)), 0.0)
    of_others = np.maximum(_above_others(np.maximum(elsewhere, 0).astype(np.float64)), 0.0)
    relative = arrivals - ahead_ns
    late = np.maximum(_above_others((relative - relative.min(axis=1, keepdims=True)).astype(np.float64)), 0.0)
    carried = np.zeros(len(ranks))
    added = np.zeros(late.shape)
    for at in range(len(same)):
        carried = np.maximum(carried - level_again[at], 0.0)
        added[at] = np.maximum(late[at] - carried - of_others[at], 0.0)
        carried = np.maximum(late[at], carried)
    return added


def _held_up(same: Sequence[MatchedCollective], times: Ints, tracks: Tracks) -> Ints:
    """By collective and rank, how long communication had blocked the device until then, since its track began."""
    found = np.zeros(times.shape, dtype=np.int64)
    for at, key in enumerate(zip(same[0].ranks.tolist(), same[0].devices, strict=True)):
        track = tracks[key]
        for name in EXPOSED:
            found[:, at] += track.timeline.classes[name].before(times[:, at] - track.base_ns)
    return found


def _above_others(values: Floats) -> Floats:
    """By row, each value less the median of the others."""
    count = values.shape[1]
    if count > _FEW:
        return np.asarray(values - np.median(values, axis=1, keepdims=True), dtype=np.float64)
    others = [np.median(np.delete(values, at, axis=1), axis=1) for at in range(count)]
    return np.asarray(values - np.stack(others, axis=1), dtype=np.float64)
