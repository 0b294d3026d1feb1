"""What ran beside collectives as recorded: kernels share the device with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dptune.measure.intervals import NOTHING, Intervals
from dptune.whatif.gpu.graph import COMPUTING, Kind
from dptune.whatif.gpu.program import Program


class Transfer(NamedTuple):
    """One collective on one rank: from the last rank's begin to its end, in the recording."""

    place: int
    rank: int
    start_ns: int
    end_ns: int


def transfers(program: Program, times: Sequence[float]) -> list[Transfer]:
    """All that were found on all their ranks, by the place of their end; `times` are those of all items."""
    found = []
    for place in program.places((Kind.COLLECTIVE,)):
        begun = [times[edge.item] for edge in program.edges[place] if edge.kind == Kind.COLLECTIVE]
        if begun and max(begun) < times[place]:
            found.append(Transfer(place, program.ranks[place], round(max(begun)), round(times[place])))
    return [transfer for transfer in found if transfer.end_ns > transfer.start_ns]


def computing_shares(program: Program, times: Sequence[float] = ()) -> dict[int, float]:
    """By place of a collective's end the part of its transfer in which one of its ranks computed.

    As recorded, or as of these times of all items. Each rank passes on what it gets from the one before it, so all wait
    for one whose multiprocessors are busy.
    """
    moments = times or program.recorded_ns
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place in program.places(COMPUTING):
        for edge in program.edges[place]:
            if edge.kind in COMPUTING:
                spans[program.ranks[place]].append((round(moments[edge.item]), round(moments[place])))
    by_rank = {rank: _union(each) for rank, each in spans.items()}
    by_message: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in transfers(program, moments):
        by_message[_message(program, transfer.place)].append(transfer)
    members: dict[frozenset[int], list[Transfer]] = defaultdict(list)
    for several in by_message.values():
        members[frozenset(transfer.rank for transfer in several)] += several
    shares: dict[int, float] = {}
    for ranks, several in members.items():
        busy = [by_rank[rank] for rank in ranks if rank in by_rank]
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


def _union(spans: list[tuple[int, int]]) -> Intervals:
    start, end = np.array(spans, dtype=np.int64).T
    return Intervals.union(start, end)


def _shares(found: list[Transfer], beside: Intervals) -> dict[int, float]:
    start = np.array([transfer.start_ns for transfer in found], dtype=np.int64)
    end = np.array([transfer.end_ns for transfer in found], dtype=np.int64)
    part = beside.lengths(start, end) / (end - start)
    return dict(zip((transfer.place for transfer in found), part.tolist(), strict=True))
