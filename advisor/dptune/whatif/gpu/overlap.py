"""What ran beside collectives as recorded: kernels share the device with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.whatif.gpu.graph import COMPUTING, Kind
from dptune.whatif.gpu.program import Program


class Transfer(NamedTuple):
    """One collective on one rank: from the last rank's begin to its end, in the recording."""

    place: int
    rank: int
    start_ns: int
    end_ns: int


def transferred(program: Program, times: Sequence[float]) -> tuple[Ints, Ints, Ints]:
    """By collective and rank that were found: the place of its end, the begin on its last rank, and the end, ns.

    `times` are those of all items.
    """
    columns, moments_ns = program.columns, np.rint(np.asarray(times, dtype=np.float64)).astype(np.int64)
    rows = np.flatnonzero(columns.of_kinds((Kind.COLLECTIVE,)))
    places, first = np.unique(columns.place[rows], return_index=True)
    begun_ns = np.maximum.reduceat(moments_ns[columns.item[rows]], first) if len(rows) else moments_ns[rows]
    return places, begun_ns, moments_ns[places]


def by_rank(program: Program, places: Ints, start_ns: Ints, end_ns: Ints) -> dict[int, Intervals]:
    """The union of these spans of each rank that any of these items are of."""
    of_rank = program.rank_of[places]
    return {
        rank: Intervals.union(start_ns[of_rank == rank], end_ns[of_rank == rank])
        for rank in np.unique(of_rank).tolist()
    }


def _transfers(program: Program, times: Sequence[float]) -> list[Transfer]:
    """All that take any time."""
    places, start_ns, end_ns = transferred(program, times)
    lasting = end_ns > start_ns
    each = zip(places[lasting].tolist(), start_ns[lasting].tolist(), end_ns[lasting].tolist(), strict=True)
    return [Transfer(place, program.ranks[place], start, end) for place, start, end in each]


def computing_shares(program: Program, times: Sequence[float] = ()) -> dict[int, float]:
    """By place of a collective's end the part of its transfer in which one of its ranks computed.

    As recorded, or as of these times of all items. Each rank passes on what it gets from the one before it, so all wait
    for one whose multiprocessors are busy.
    """
    moments = times or program.recorded_ns
    columns, at_ns = program.columns, np.rint(np.asarray(moments, dtype=np.float64)).astype(np.int64)
    computing = columns.of_kinds(COMPUTING)
    ends = columns.place[computing]
    computing_of = by_rank(program, ends, at_ns[columns.item[computing]], at_ns[ends])
    by_message: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in _transfers(program, moments):
        by_message[_message(program, transfer.place)].append(transfer)
    members: dict[frozenset[int], list[Transfer]] = defaultdict(list)
    for several in by_message.values():
        members[frozenset(transfer.rank for transfer in several)] += several
    shares: dict[int, float] = {}
    for ranks, several in members.items():
        busy = [computing_of[rank] for rank in ranks if rank in computing_of]
        shares.update(_shares(several, _any(busy)))
    return shares


def shares_of_messages(program: Program, shares: Mapping[int, float]) -> dict[int, float]:
    """The same by message."""
    return {_message(program, place): share for place, share in shares.items()}


def _message(program: Program, place: int) -> int:
    return next(edge.message for edge in program.edges[place] if edge.kind == Kind.COLLECTIVE)


def _any(several: list[Intervals]) -> Intervals:
    """When at least one of them holds."""
    if not several:
        return NOTHING
    start = np.concatenate([each.start_ns for each in several])
    return Intervals.union(start, np.concatenate([each.end_ns for each in several]))


def _shares(found: list[Transfer], beside: Intervals) -> dict[int, float]:
    start = np.array([transfer.start_ns for transfer in found], dtype=np.int64)
    end = np.array([transfer.end_ns for transfer in found], dtype=np.int64)
    part = beside.lengths(start, end) / (end - start)
    return dict(zip((transfer.place for transfer in found), part.tolist(), strict=True))
