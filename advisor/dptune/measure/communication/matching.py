"""Which calls of the ranks are one collective.

By the sequence number where the trace has them. Else, within a step and a process group, by order: where the ranks'
calls are the same kinds and sizes in the same order, call n of one is call n of the other; where some ranks lack calls
at the head or the tail, by the shift at which most kinds and sizes agree, and of several at which the ends agree best.
No rank leaves a symmetric collective before the last has come: where the clocks are known and deny that, by the time at
which the calls ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dptune.measure.communication.alignment import Row, by_order, by_sequence, by_time, together_ns
from dptune.measure.communication.calls import Call
from dptune.measure.intervals import Ints
from dptune.measured import MatchBasis
from dptune.measured.collectives import collective


class Shared(Protocol):
    """A clock that can be read by that of another rank."""

    @property
    def ahead_ns(self) -> int:
        """What to take off its times."""

    @property
    def off_ns(self) -> int:
        """How far it may be off after that."""


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


_Part = tuple[RankCalls, list[Call]]  # of one rank, in one step and process group


@dataclass(frozen=True, eq=False)
class MatchedCollective:
    """One collective on the ranks that were read, at least two.

    `message_bytes` is the largest over the ranks. `calls`, `ranks`, `devices`, `start_ns` and `end_ns` are of one
    length, in order of rank; times are int64, nanoseconds since the epoch by each rank's own clock. `complete`: every
    rank of its group was read.
    """

    step: int
    kind: str
    group: str | None
    dtype: str | None
    message_bytes: int | None
    basis: MatchBasis
    complete: bool
    calls: tuple[Call, ...]
    ranks: Ints
    devices: tuple[str, ...]
    start_ns: Ints
    end_ns: Ints

    @property
    def symmetric(self) -> bool:
        """Whether no rank can end before the last has come."""
        return collective(self.kind).symmetric

    @property
    def splits(self) -> bool:
        """Whether its shortest duration is the transfer, and what the others take longer is waiting.

        A call of no duration was not timed: no transfer takes no time.
        """
        return self.symmetric and self.complete and bool((self.end_ns > self.start_ns).all())

    @property
    def transfer_ns(self) -> int:
        """The shortest duration: that of the last rank to come."""
        return int((self.end_ns - self.start_ns).min())

    @property
    def waiting_ns(self) -> int:
        """What all ranks together took longer than the last to come."""
        return int((self.end_ns - self.start_ns).sum()) - len(self.ranks) * self.transfer_ns


def match(
    ranks: Iterable[RankCalls], world_size: int | None, clocks: Mapping[int, Shared] | None = None
) -> list[MatchedCollective]:
    """The collectives of a run, in the order of the first rank's calls; `clocks` are those known so far, by rank."""
    pools: dict[tuple[int, str | None, str | None], list[_Part]] = defaultdict(list)
    present = set()
    for rank in ranks:
        present.add(rank.rank)
        split: dict[tuple[int, str | None, str | None], list[Call]] = defaultdict(list)
        for call in rank.calls:
            if not call.ambiguous:
                split[rank.numbers[call.step], call.group, call.members].append(call)
        for key, calls in split.items():
            pools[key].append((rank, calls))
    found = []
    for (step, _, _), pool in sorted(pools.items(), key=lambda item: item[0][0]):
        size = pool[0][1][0].group_size or world_size or len(present)
        if 1 < len(pool) <= size and len({rank_calls.rank for rank_calls, _ in pool}) == len(pool):
            found += _of_pool(step, sorted(pool, key=lambda part: part[0].rank), size, clocks or {})
    return found


def _of_pool(step: int, pool: list[_Part], size: int, clocks: Mapping[int, Shared]) -> list[MatchedCollective]:
    ranks = [calls for _, calls in pool]
    basis: MatchBasis = "sequence"
    if all(call.sequence is not None for calls in ranks for call in calls):
        rows = by_sequence(ranks)
    else:
        rows, alike = by_order(ranks, [rank_calls.base_ns for rank_calls, _ in pool])
        basis = "order" if alike else "shift"
        if all(rank_calls.rank in clocks for rank_calls, _ in pool):
            timed = _by_time(pool, rows, [clocks[rank_calls.rank] for rank_calls, _ in pool])
            rows, basis = (rows, basis) if timed is None else (timed, "shift")
    return [_collective(step, row, pool, basis, size) for row in rows if sum(call is not None for call in row) > 1]


def _by_time(pool: list[_Part], rows: list[Row], clocks: Sequence[Shared]) -> list[Row] | None:
    """The rows by time, where all ranks meet in more calls than by these rows, which some had left too early."""
    base_ns = [rank_calls.base_ns - clock.ahead_ns for (rank_calls, _), clock in zip(pool, clocks, strict=True)]
    slack_ns = max(clock.off_ns for clock in clocks)
    kept = [row for row in rows if not collective(_kind(row)).symmetric or together_ns(row, base_ns) >= -slack_ns]
    if len(kept) == len(rows):
        return None
    timed = [row for row in by_time([calls for _, calls in pool], base_ns) if together_ns(row, base_ns) > 0]
    return timed if _whole(timed) > _whole(kept) else None


def possible(candidate: MatchedCollective, clocks: Mapping[int, Shared]) -> bool:
    """Whether no rank had left a symmetric collective before another came, as far as the clocks tell."""
    known = [clocks[rank] for rank in candidate.ranks.tolist() if rank in clocks]
    if candidate.basis == "sequence" or not candidate.symmetric or len(known) < len(candidate.ranks):
        return True
    ahead_ns = np.array([clock.ahead_ns for clock in known], dtype=np.int64)
    together = (candidate.end_ns - ahead_ns).min() - (candidate.start_ns - ahead_ns).max()
    return bool(together >= -max(clock.off_ns for clock in known))


def _kind(row: Row) -> str:
    return next(call.kind for call in row if call is not None)


def _whole(rows: list[Row]) -> int:
    return sum(all(call is not None for call in row) for row in rows)


def _collective(step: int, row: Row, pool: list[_Part], basis: MatchBasis, size: int) -> MatchedCollective:
    members = [(rank_calls, call) for (rank_calls, _), call in zip(pool, row, strict=True) if call is not None]
    first = members[0][1]
    sizes = [call.message_bytes for _, call in members if call.message_bytes is not None]
    return MatchedCollective(
        step=step,
        kind=first.kind,
        group=first.group,
        dtype=first.dtype,
        message_bytes=max(sizes) if len(sizes) == len(members) else None,
        basis=basis,
        complete=len(members) == size,
        calls=tuple(call for _, call in members),
        ranks=np.array([rank_calls.rank for rank_calls, _ in members], dtype=np.int64),
        devices=tuple(rank_calls.device for rank_calls, _ in members),
        start_ns=np.array([rank_calls.base_ns + call.start_ns for rank_calls, call in members], dtype=np.int64),
        end_ns=np.array(
            [rank_calls.base_ns + call.start_ns + call.dur_ns for rank_calls, call in members], dtype=np.int64
        ),
    )
