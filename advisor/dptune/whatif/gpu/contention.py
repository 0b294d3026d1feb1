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

from dptune.measure.intervals import NOTHING, Ints
from dptune.whatif.gpu.columns import Floats
from dptune.whatif.gpu.editing import retimed
from dptune.whatif.gpu.graph import COMPUTING, Kind
from dptune.whatif.gpu.overlap import by_rank, computing_shares, transferred
from dptune.whatif.gpu.program import Program

_WITHOUT, _BESIDE = 0.02, 0.5  # of its time with a transfer: up to the first alone, from the second on overlapped
_FEWEST = 20  # kernels that overlap a transfer and whose work was also seen alone
_LEAST_TIMES, _MOST_TIMES = 1.01, 2.0
_NONE: tuple[Ints, Floats] = np.empty(0, dtype=np.int64), np.empty(0)
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
    kernels, columns = _Kernels(program), program.columns
    recorded = np.array([program.beside.get(place, 0.0) for place in kernels.ends.tolist()])
    lag_ns = columns.lag_ns
    for replay in range(_REPLAYS):
        times = program.run() if not replay else program.run(lag_ns)
        lag_ns = columns.lag_ns.copy()
        for rows, factors in (_slower_kernels(program, kernels, recorded, times), _slower_transfers(program, times)):
            lag_ns[rows] *= factors
    rows = np.flatnonzero(lag_ns != columns.lag_ns)
    return retimed(program, rows, lag_ns[rows])


def _slower_kernels(
    program: Program, kernels: _Kernels, recorded: Floats, times: Sequence[float]
) -> tuple[Ints, Floats]:
    """The edges of kernels that transfers overlap more or less than `recorded`, and how many times as long they are."""
    slowed = program.beside_times
    if slowed == 1.0:
        return _NONE
    factors = (1 + (slowed - 1) * kernels.shares(program, times)) / (1 + (slowed - 1) * recorded)
    differ = np.abs(factors - 1) > (slowed - 1) * _WITHOUT
    return kernels.rows[differ], factors[differ]


def _slower_transfers(program: Program, times: Sequence[float]) -> tuple[Ints, Floats]:
    """The same of transfers that compute overlaps more or less than as recorded."""
    slowed, recorded, columns = program.transfer_times, program.transfer_shares, program.columns
    if slowed == 1.0:
        return _NONE
    rows = np.flatnonzero(columns.of_kinds((Kind.COLLECTIVE,)))
    now = computing_shares(program, times)
    pairs = zip(columns.place[rows].tolist(), columns.message[rows].tolist(), strict=True)
    factors = np.array(
        [
            (1 + (slowed - 1) * now.get(place, 0.0)) / (1 + (slowed - 1) * recorded[message])
            if message in recorded
            else 1.0
            for place, message in pairs
        ]
    )
    differ = np.abs(factors - 1) > (slowed - 1) * _WITHOUT
    return rows[differ], factors[differ]


class _Kernels:
    """The edges of kernels, their ends and begins, and how long they take; numbered in order of their places."""

    def __init__(self, program: Program) -> None:
        columns = program.columns
        self.rows = np.flatnonzero(columns.of_kinds(COMPUTING) & (columns.item < columns.place))
        self.ends, self.begins = columns.place[self.rows], columns.item[self.rows]
        self.lag_ns: Floats = columns.lag_ns[self.rows]

    def shares(self, program: Program, times: Sequence[float]) -> Floats:
        """The part of each kernel that overlaps a transfer of its rank."""
        moments = np.rint(np.asarray(times, dtype=np.float64)).astype(np.int64)
        beside = by_rank(program, *transferred(program, times))
        begin, end = moments[self.begins], moments[self.ends]
        ranks = program.rank_of[self.ends]
        shares: Floats = np.zeros(len(begin))
        for rank in np.unique(ranks).tolist():
            (mine,) = np.nonzero((ranks == rank) & (end > begin))
            lengths = beside.get(rank, NOTHING).lengths(begin[mine], end[mine])
            shares[mine] = lengths / (end[mine] - begin[mine])
        return shares


def _weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """The weighted median of (value, weight) pairs."""
    values, weights = np.array(sorted(pairs), dtype=np.float64).T
    return float(values[np.searchsorted(np.cumsum(weights), weights.sum() / 2)])
