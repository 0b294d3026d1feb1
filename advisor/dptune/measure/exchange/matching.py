"""One collective, many ranks: which calls of the ranks are the same exchange.

By the sequence number where the trace has them. Else, within a step and a process group, by order: where the ranks'
calls are the same kinds and sizes in the same order, call n of one is call n of the other; where some ranks lack calls
at the head or the tail, by the shift at which most kinds and sizes agree, and of several at which the ends agree best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.exchange.calls import Call
from dptune.measure.intervals import Ints
from dptune.measured import MatchBasis

SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_FARTHEST = 64  # calls that may be missing at the head of a rank's step


@dataclass(frozen=True)
class RankCalls:
    """The calls of one device of one rank, in the order of launching, with `base_ns` of its clock.

    `numbers` are those of its steps, which `Call.step` indexes.
    """

    rank: int
    device: str
    base_ns: int
    numbers: Sequence[int]
    calls: Sequence[Call]


@dataclass(frozen=True, eq=False)
class Exchange:
    """One collective on the ranks that were read, at least two.

    `ranks`, `start_ns` and `end_ns` are int64 arrays of one length, in order of rank; times are nanoseconds since the
    epoch by each rank's own clock; `devices` the devices. `complete`: every rank of its group was read.
    """

    step: int
    kind: str
    group: str | None
    dtype: str | None
    message_bytes: int | None
    basis: MatchBasis
    complete: bool
    ranks: Ints
    devices: tuple[str, ...]
    start_ns: Ints
    end_ns: Ints

    @property
    def symmetric(self) -> bool:
        """Whether no rank can end before the last has come."""
        return self.kind in SYMMETRIC

    @property
    def splits(self) -> bool:
        """Whether its shortest duration is the transfer, and what the others take longer is waiting."""
        return self.symmetric and self.complete

    @property
    def transfer_ns(self) -> int:
        """The shortest duration: that of the last rank to come."""
        return int((self.end_ns - self.start_ns).min())

    @property
    def waiting_ns(self) -> int:
        """What all ranks together took longer than the last to come."""
        return int((self.end_ns - self.start_ns).sum()) - len(self.ranks) * self.transfer_ns


def match(ranks: Iterable[RankCalls], world_size: int | None) -> list[Exchange]:
    """The exchanges of a run, in the order of the first rank's calls."""
    pools: dict[tuple[int, str | None, str | None], list[tuple[RankCalls, list[Call]]]] = defaultdict(list)
    present = set()
    for own in ranks:
        present.add(own.rank)
        split: dict[tuple[int, str | None, str | None], list[Call]] = defaultdict(list)
        for call in own.calls:
            split[own.numbers[call.step], call.group, call.members].append(call)
        for key, calls in split.items():
            pools[key].append((own, calls))
    found = []
    for (step, _, _), pool in sorted(pools.items(), key=lambda item: item[0][0]):
        if len(pool) > 1 and len({own.rank for own, _ in pool}) == len(pool):
            found += _of_pool(step, pool, world_size or len(present))
    return found


def _of_pool(step: int, pool: list[tuple[RankCalls, list[Call]]], world_size: int) -> list[Exchange]:
    pool = sorted(pool, key=lambda one: one[0].rank)
    if all(call.sequence is not None for _, calls in pool for call in calls):
        rows, basis = _by_sequence([calls for _, calls in pool]), "sequence"
    else:
        keys = [[(call.kind, call.message_bytes) for call in calls] for _, calls in pool]
        alike = all(one == keys[0] for one in keys)
        rows, basis = _by_shift(pool, keys), "order" if alike else "shift"
    return [_exchange(step, row, pool, basis, world_size) for row in rows if sum(call is not None for call in row) > 1]  # type: ignore[arg-type]


def _exchange(
    step: int, row: list[Call | None], pool: list[tuple[RankCalls, list[Call]]], basis: MatchBasis, world_size: int
) -> Exchange:
    members = [(own, call) for (own, _), call in zip(pool, row, strict=True) if call is not None]
    first = members[0][1]
    return Exchange(
        step=step,
        kind=first.kind,
        group=first.group,
        dtype=first.dtype,
        message_bytes=first.message_bytes,
        basis=basis,
        complete=len(members) == (first.group_size or world_size),
        ranks=np.array([own.rank for own, _ in members], dtype=np.int64),
        devices=tuple(own.device for own, _ in members),
        start_ns=np.array([own.base_ns + call.start_ns for own, call in members], dtype=np.int64),
        end_ns=np.array([own.base_ns + call.start_ns + call.dur_ns for own, call in members], dtype=np.int64),
    )


def _by_sequence(ranks: list[list[Call]]) -> list[list[Call | None]]:
    """Calls with the same sequence number and kind; of several on one rank the first."""
    by_key: dict[tuple[int | None, str], list[Call | None]] = {}
    for at, calls in enumerate(ranks):
        for call in calls:
            row = by_key.setdefault((call.sequence, call.kind), [None] * len(ranks))
            row[at] = row[at] or call
    return list(by_key.values())


def _by_shift(
    pool: list[tuple[RankCalls, list[Call]]], keys: list[list[tuple[str, int | None]]]
) -> list[list[Call | None]]:
    """Calls at the same place, of the rank with most calls; other ranks shifted to where most kinds and sizes agree."""
    numbers = {key: at for at, key in enumerate(dict.fromkeys(key for rank in keys for key in rank))}
    codes = [np.array([numbers[key] for key in rank], dtype=np.int64) for rank in keys]
    ends = [
        np.array([own.base_ns + call.start_ns + call.dur_ns for call in calls], dtype=np.int64) for own, calls in pool
    ]
    longest = max(range(len(pool)), key=lambda at: (len(codes[at]), -at))
    rows: list[list[Call | None]] = [[None] * len(pool) for _ in codes[longest]]
    for at, (_, calls) in enumerate(pool):
        shift = 0 if keys[at] == keys[longest] else _shift(codes[at], codes[longest], ends[at], ends[longest])
        for place, call in enumerate(calls, shift):
            if 0 <= place < len(rows) and codes[at][place - shift] == codes[longest][place]:
                rows[place][at] = call
    return rows


def _shift(codes: Ints, model: Ints, ends: Ints, model_ends: Ints) -> int:
    """How many calls the head lacks (negative: has too many).

    Of shifts at which as many kinds and sizes agree, that at which the ends are equally far apart; of those (calls at
    an even pace), that at which they are nearest.
    """

    def fit(shift: int) -> tuple[int, float, float]:
        low, high = max(shift, 0), min(shift + len(codes), len(model))
        agree = codes[low - shift : high - shift] == model[low:high]
        between = (ends[low - shift : high - shift] - model_ends[low:high])[agree]
        apart = float(np.median(between)) if len(between) else 0.0
        return -int(agree.sum()), float(np.abs(between - apart).sum()), abs(apart)

    farthest = min(len(model), _FARTHEST)
    return min(range(-min(len(codes), _FARTHEST) + 1, farthest), key=fit)
