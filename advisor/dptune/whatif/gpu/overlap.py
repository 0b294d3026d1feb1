"""What ran beside collectives as recorded: kernels share the device with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
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


def transfers(program: Program) -> list[Transfer]:
    """All that were found on all their ranks, by the place of their end."""
    recorded = program.recorded_ns
    found = []
    for place in program.places((Kind.EXCHANGE,)):
        begun = [recorded[edge.item] for edge in program.edges[place] if edge.kind == Kind.EXCHANGE]
        if begun and max(begun) < recorded[place]:
            found.append(Transfer(place, program.ranks[place], max(begun), recorded[place]))
    return found


def computing_shares(program: Program) -> dict[int, float]:
    """By place of a collective's end the part of its transfer in which its rank computed."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place in program.places(COMPUTING):
        for edge in program.edges[place]:
            if edge.kind in COMPUTING:
                spans[program.ranks[place]].append((program.recorded_ns[edge.item], program.recorded_ns[place]))
    return _shares(transfers(program), {rank: _union(each) for rank, each in spans.items()})


def _union(spans: list[tuple[int, int]]) -> Intervals:
    start, end = np.array(spans, dtype=np.int64).T
    return Intervals.union(start, end)


def _shares(found: list[Transfer], beside: Mapping[int, Intervals]) -> dict[int, float]:
    shares: dict[int, float] = {}
    by_rank: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in found:
        by_rank[transfer.rank].append(transfer)
    for rank, of_rank in by_rank.items():
        start = np.array([transfer.start_ns for transfer in of_rank], dtype=np.int64)
        end = np.array([transfer.end_ns for transfer in of_rank], dtype=np.int64)
        part = beside.get(rank, NOTHING).lengths(start, end) / (end - start)
        shares.update(zip((transfer.place for transfer in of_rank), part.tolist(), strict=True))
    return shares
