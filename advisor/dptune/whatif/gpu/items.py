"""Items of a rank before those of all ranks are in order: columns, and what each waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from dptune.measure.intervals import Ints, Mask
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.parts import Part

NO_MESSAGE = -1
Key = tuple[int, str, int]  # of an item: its rank, what it is, and the row of the call or operation


class Sort(IntEnum):
    """Items of one moment are in this order."""

    END = 0
    HOST = 1
    BEGIN = 2
    FREED = 3  # a full queue has room
    ARRIVED = 4  # the last rank's part of a collective has begun


@dataclass(frozen=True, eq=False)
class Waits:
    """By wait the number of the item that waits, that of the item it waits for, for how long then, and its `Kind`.

    `turn`: in which order those of one item are.
    """

    item: Ints
    awaited: Ints
    lag_ns: Ints
    kind: Ints
    turn: Ints
    message: Ints

    @classmethod
    def of(
        cls, item: Ints, awaited: Ints, lag_ns: Ints | int, kind: Ints | Kind, turn: int, message: int = NO_MESSAGE
    ) -> Waits:
        """Waits of several items; what is one number holds for all."""
        others = (np.asarray(each, dtype=np.int64) for each in (lag_ns, kind, turn, message))
        return cls(item, awaited, *(np.broadcast_to(each, item.shape) for each in others))

    @classmethod
    def joined(cls, several: Sequence[Waits]) -> Waits:
        """All of these."""
        return cls(*(np.concatenate(columns) for columns in zip(*(each.columns for each in several), strict=True)))

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """All columns, in their order."""
        return self.item, self.awaited, self.lag_ns, self.kind, self.turn, self.message

    def chosen(self, rows: Mask | Ints) -> Waits:
        """Some of them."""
        return Waits(*(column[rows] for column in self.columns))

    def later(self, by: int) -> Waits:
        """The same of items that come so many later."""
        return Waits(self.item + by, self.awaited + by, *self.columns[2:])


@dataclass(frozen=True, eq=False)
class Items:
    """Those of one rank, its host's first: when by its own clock, `Sort`, micro-batch, flags of `Part`, and waits.

    `calls`, `begins` and `ends` are the numbers of items by the row of the call or the operation. `spent_ns`: by part,
    what the host spent on it before an item. By end of an operation: its bytes in `uploads`, its work in `works`; by
    begin its launch queue in `queues`, where that is not the one with most launches.
    """

    time_ns: Ints
    sort: Ints
    micro_batch: Ints
    part: Ints
    waits: Waits
    spent_ns: Mapping[Part, Ints]
    calls: Mapping[int, int]
    begins: Mapping[int, int]
    ends: Mapping[int, int]
    uploads: Mapping[int, int]
    works: Mapping[int, int]
    queues: Mapping[int, int]

    def named(self, sort: str) -> Mapping[int, int]:
        """The numbers of items that are calls, begins or ends."""
        return {"call": self.calls, "begin": self.begins, "end": self.ends}[sort]


class ItemPlaces(Mapping[Key, int]):
    """The places of calls, begins and ends once the items of all ranks are in order."""

    def __init__(self, ranks: Mapping[int, Items], first: Mapping[int, int], places: Ints) -> None:
        """`first`: by rank the number of its first item; `places` by number."""
        self._ranks, self._first, self._places = ranks, first, places

    def __getitem__(self, key: Key) -> int:
        rank, sort, row = key
        return int(self._places[self._first[rank] + self._ranks[rank].named(sort)[row]])

    def __iter__(self) -> Iterator[Key]:
        for rank, items in self._ranks.items():
            for sort in ("call", "begin", "end"):
                yield from ((rank, sort, row) for row in items.named(sort))

    def __len__(self) -> int:
        return sum(len(items.named(sort)) for items in self._ranks.values() for sort in ("call", "begin", "end"))
