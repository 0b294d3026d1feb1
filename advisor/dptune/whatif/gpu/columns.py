"""The edges of a program as columns of numbers: many times as fast as objects where all edges are passed over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from dptune.measure.intervals import Ints, Mask
from dptune.whatif.gpu.graph import OF_HOST, Edge, Kind

Floats = NDArray[np.float64]
_KINDS = tuple(Kind)


@dataclass(frozen=True, eq=False)
class Columns:
    """By edge, in order of the items that wait: the places of that item and of the one that it waits for, and so on.

    Fields are those of `Edge`, int64 but for `lag_ns`, float64, and `kind`, uint8: a number of `Kind`. `count` is the
    number of items.
    """

    count: int
    place: Ints
    item: Ints
    lag_ns: Floats
    kind: NDArray[np.uint8]
    message: Ints

    @classmethod
    def of(cls, edges: Sequence[Sequence[Edge]]) -> Columns:
        """Those of these edges, by place of the item that waits."""
        flat = [*chain.from_iterable(edges)]
        counts = np.fromiter(map(len, edges), dtype=np.int64, count=len(edges))
        return cls(
            len(edges),
            np.repeat(np.arange(len(edges)), counts),
            np.array([edge.item for edge in flat], dtype=np.int64),
            np.array([edge.lag_ns for edge in flat], dtype=np.float64),
            np.frombuffer(bytes([edge.kind for edge in flat]), dtype=np.uint8),
            np.array([edge.message for edge in flat], dtype=np.int64),
        )

    def of_kinds(self, kinds: Collection[Kind]) -> Mask:
        """Which edges are of one of these kinds."""
        wanted = np.zeros(len(Kind), dtype=np.bool_)
        wanted[[*kinds]] = True
        found: Mask = wanted[self.kind]
        return found

    def places(self, kinds: Collection[Kind]) -> Ints:
        """In order the places of the items that have an edge of one of these kinds."""
        found = self.place[self.of_kinds(kinds)]
        return np.asarray(found[np.append(True, found[1:] != found[:-1])[: len(found)]], dtype=np.int64)

    def scaled(self, kinds: Collection[Kind], factor: float) -> Floats:
        """The times of all edges, those of these kinds so many times as long."""
        return np.where(self.of_kinds(kinds), self.lag_ns * factor, self.lag_ns)

    def host_between_ns(self, lag_ns: Floats, calls: Sequence[tuple[int, int] | None]) -> list[float | None]:
        """What the host does between the calls that launch a step's first operation and the next step's, of each.

        None where that is not known: a call that launched one of them was not recorded.
        """
        rows = np.flatnonzero(self.of_kinds(OF_HOST))[::-1]  # of several edges of an item the first one stays
        before, spent = np.full(self.count, -1), np.zeros(self.count)
        before[self.place[rows]], spent[self.place[rows]] = self.item[rows], lag_ns[rows]
        items, spent_ns = before.tolist(), spent.tolist()

        def between(first: int, item: int) -> float | None:
            worked = 0.0
            while item > first:
                worked += spent_ns[item]
                item = items[item]
                if item < 0:
                    return None
            return worked

        return [None if pair is None else between(*pair) for pair in calls]

    def edges(self) -> list[Sequence[Edge]]:
        """The edges by place of the item that waits."""
        columns = self.item.tolist(), self.lag_ns.tolist(), map(_KINDS.__getitem__, self.kind.tolist())
        flat = list(map(Edge, *columns, self.message.tolist()))
        borders = np.searchsorted(self.place, np.arange(self.count + 1)).tolist()
        return [flat[first:last] for first, last in pairwise(borders)]

    def moved(self, places: Ints) -> Columns:
        """The columns where each item has another place."""
        place = places[self.place]
        order = np.argsort(place, kind="stable")
        item = places[self.item[order]]
        return Columns(self.count, place[order], item, self.lag_ns[order], self.kind[order], self.message[order])
