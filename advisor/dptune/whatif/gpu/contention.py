"""The slowdown of kernels and transfers that overlap each other: as recorded, and with a change.

That of kernels is measured where the trace has the same work with and without an overlapping transfer. Kernels do the
same work if they have the same name and the same neighbors: across repeated layers, not only across steps. For that of
transfers see `links`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.whatif.gpu.editing import with_new
from dptune.whatif.gpu.graph import COMPUTING, Edge, Kind
from dptune.whatif.gpu.overlap import computing_shares
from dptune.whatif.gpu.program import Program

Floats = NDArray[np.float64]
_WITHOUT, _BESIDE = 0.02, 0.5  # of its time with a transfer: up to the first alone, from the second on overlapped
_FEWEST = 20  # kernels that overlap a transfer and whose work was also seen alone
_LEAST_TIMES, _MOST_TIMES = 1.01, 2.0
_REPLAYS = 2  # shorter kernels change what overlaps
_AROUND = 2  # kernels before and after one that identify its work


def works(names: Ints) -> Ints:
    """A number for each kernel's work, by its name and its neighbors'; kernels are in the order of their launches."""
    padded = np.concatenate((np.full(_AROUND, -1), names, np.full(_AROUND, -1)))
    around = np.stack([padded[by : by + len(names)] for by in range(2 * _AROUND + 1)], axis=1)
    return np.unique(around, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def with_contention(program: Program, work: Mapping[int, int]) -> Program:
    """The program with the share of each kernel that overlaps transfers, and the slowdown of kernels that do.

    `work`: by place of a kernel's end, the number of its work, by rank and `works`.
    """
    kernels = _Kernels(program)
    shares = kernels.shares(program, program.recorded_ns)
    took: dict[int, tuple[list[float], list[tuple[float, float]]]] = {}
    for place, ns, share in zip(kernels.ends.tolist(), kernels.lag_ns.tolist(), shares.tolist(), strict=True):
        if place in work and ns > 0:
            without, beside = took.setdefault(work[place], ([], []))
            if share <= _WITHOUT:
                without.append(ns)
            elif share >= _BESIDE:
                beside.append((ns, share))
    times = [
        (1 + (ns / alone_ns - 1) / share, ns)
        for without, beside in took.values()
        if without and (alone_ns := median(without))
        for ns, share in beside
    ]
    if len(times) < _FEWEST:
        return program
    slowed = min(_MOST_TIMES, _weighted_median(times))
    if slowed < _LEAST_TIMES:
        return program
    beside_by_place = {
        place: share for place, share in zip(kernels.ends.tolist(), shares.tolist(), strict=True) if share
    }
    return replace(program, beside=beside_by_place, beside_times=slowed)


def contended(program: Program) -> Program:
    """The program after a change: kernels as slow as the transfers that now overlap them make them, and transfers as
    slow as the kernels do.
    """
    if not program.messages or program.beside_times == program.transfer_times == 1.0:
        return program
    found, kernels = program, _Kernels(program)
    recorded = np.array([program.beside.get(place, 0.0) for place in kernels.ends.tolist()])
    for _ in range(_REPLAYS):
        slower = _slower_kernels(program, kernels, recorded, found), _slower_transfers(program, found)
        found = with_new(program, {place: edges for each in slower for place, edges in each.items()})
    return found


def _slower_kernels(program: Program, kernels: _Kernels, recorded: Floats, now: Program) -> dict[int, list[Edge]]:
    """By place the edges of kernels that transfers overlap more or less than `recorded`."""
    times = program.beside_times
    if times == 1.0:
        return {}
    factors = (1 + (times - 1) * kernels.shares(now, now.run())) / (1 + (times - 1) * recorded)
    differ = np.flatnonzero(np.abs(factors - 1) > (times - 1) * _WITHOUT)
    new: dict[int, list[Edge]] = {}
    for number in differ.tolist():
        place, factor = int(kernels.ends[number]), float(factors[number])
        new[place] = [
            edge.lasting(edge.lag_ns * factor) if edge.kind in COMPUTING else edge for edge in program.edges[place]
        ]
    return new


def _slower_transfers(program: Program, now: Program) -> dict[int, list[Edge]]:
    """The same of transfers that compute overlaps more or less than as recorded."""
    times, recorded = program.transfer_times, program.transfer_shares
    if times == 1.0:
        return {}
    shares, new = computing_shares(now, now.run()), dict[int, list[Edge]]()
    for place in program.places((Kind.COLLECTIVE,)):
        messages = [edge.message for edge in program.edges[place] if edge.kind == Kind.COLLECTIVE]
        if not messages or messages[0] not in recorded:
            continue
        factor = (1 + (times - 1) * shares.get(place, 0.0)) / (1 + (times - 1) * recorded[messages[0]])
        if abs(factor - 1) > (times - 1) * _WITHOUT:
            new[place] = [
                edge.lasting(edge.lag_ns * factor) if edge.kind == Kind.COLLECTIVE else edge
                for edge in program.edges[place]
            ]
    return new


class _Kernels:
    """The ends of kernels, their begins, and how long they take; numbered in order of their places."""

    def __init__(self, program: Program) -> None:
        found = [
            (place, edge.item, edge.lag_ns)
            for place in program.places(COMPUTING)
            for edge in program.edges[place]
            if edge.kind in COMPUTING and edge.item < place
        ]
        columns = np.array(found, dtype=np.float64).reshape(-1, 3)
        self.ends, self.begins = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
        self.lag_ns: Floats = columns[:, 2]

    def shares(self, program: Program, times: Sequence[float]) -> Floats:
        """The part of each kernel that overlaps a transfer of its rank."""
        moments = np.rint(np.asarray(times, dtype=np.float64)).astype(np.int64)
        beside = _transferring(program, moments)
        begin, end = moments[self.begins], moments[self.ends]
        ranks = np.asarray(program.ranks, dtype=np.int64)[self.ends]
        shares: Floats = np.zeros(len(begin))
        for rank in np.unique(ranks).tolist():
            (mine,) = np.nonzero((ranks == rank) & (end > begin))
            lengths = beside.get(rank, NOTHING).lengths(begin[mine], end[mine])
            shares[mine] = lengths / (end[mine] - begin[mine])
        return shares


def _transferring(program: Program, moments: Ints) -> dict[int, Intervals]:
    """By rank, when collectives transfer: from the begin on the last rank to the end."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for place in program.places((Kind.COLLECTIVE,)):
        begun = [int(moments[edge.item]) for edge in program.edges[place] if edge.kind == Kind.COLLECTIVE]
        if begun:
            spans.setdefault(program.ranks[place], []).append((max(begun), int(moments[place])))
    found = {}
    for rank, each in spans.items():
        start, end = np.array(each, dtype=np.int64).T
        found[rank] = Intervals.union(start, end)
    return found


def _weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """The weighted median of (value, weight) pairs."""
    values, weights = np.array(sorted(pairs), dtype=np.float64).T
    return float(values[np.searchsorted(np.cumsum(weights), weights.sum() / 2)])
