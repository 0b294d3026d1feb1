"""The elements of a program: edges between items, messages of collectives, and steps as stretches of items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from msgspec import Struct


class Kind(IntEnum):
    """What the time of an edge is spent on."""

    HOST = 0  # from one call of the host to the next
    LAUNCH = 1  # from the call that launches an operation to its begin
    ORDER = 2  # from the end of an operation to the begin of one that waits for it
    SYNC = 3  # from the end of an operation to the return of a call that waits for it
    COMPUTE = 4  # a kernel
    COPY = 5
    COLLECTIVE = 6  # a collective, from the last rank's begin to its end
    WAIT = 7  # a collective of which not all ranks were read, from its begin to its end
    INPUT = 8  # the script waits for its data loader
    PRODUCT = 9  # a kernel that may multiply matrices or convolve in fp32
    QUEUE = 10  # from the begin of an operation to the return of a call that had no room in the queue before
    UPDATE = 11  # a kernel of the optimizer's step
    UPDATING = 12  # from one call of the host to the next, in the optimizer's step
    FP32 = 13  # a kernel that multiplies matrices or convolves in fp32 without matrix units
    ATTENTION = 14  # a kernel of fused attention in fp32
    ARRIVAL = 15  # from a rank's begin of a collective to the item that is the last rank's: no time
    RELEASE = 16  # from the end of an operation to where a call that frees memory of the device goes on
    UNSIZED = 17  # a collective of which all ranks were read, but not how many bytes it is of


MATCHED = frozenset({Kind.COLLECTIVE, Kind.UNSIZED})
OF_HOST = frozenset({Kind.HOST, Kind.UPDATING, Kind.INPUT})
COMPUTING = frozenset({Kind.COMPUTE, Kind.PRODUCT, Kind.UPDATE, Kind.FP32, Kind.ATTENTION})


class Edge(Struct, frozen=True, gc=False):
    """What is waited for: the place of an item, the time from then on, and the place of the message that is sent.

    A run of 500 MB has a million; the garbage collector passes over them.
    """

    item: int
    lag_ns: float
    kind: Kind
    message: int = -1

    def lasting(self, lag_ns: float) -> Edge:
        """The same with another time."""
        return Edge(self.item, lag_ns, self.kind, self.message)


@dataclass(frozen=True)
class Message:
    """One collective: its kind, how many bytes it is of, their type, and of how many ranks it is, 0 if unknown.

    `offsets` are these ranks, counted from the first of them; empty if unknown.
    """

    kind: str
    message_bytes: int
    dtype: str | None
    ranks: int = 0
    offsets: tuple[int, ...] = ()


def offsets_of(ranks: Iterable[int]) -> tuple[int, ...]:
    """The ranks of a group, counted from the first: alike in groups that lie alike, as in each host."""
    first, *others = sorted(ranks)
    return (0, *(rank - first for rank in others))


@dataclass(frozen=True)
class Stretch:
    """One step of one rank: the places of the items that it begins and ends with.

    `calls` are those of the calls that launched these two operations, where both were recorded.
    """

    rank: int
    number: int
    first: int
    last: int
    calls: tuple[int, int] | None = None

    def moved(self, places: Sequence[int]) -> Stretch:
        """The same where each item has another place."""
        calls = None if self.calls is None else (places[self.calls[0]], places[self.calls[1]])
        return Stretch(self.rank, self.number, places[self.first], places[self.last], calls)
