"""Collectives that share one link, as time goes on.

A collective takes alpha, then its bytes at the link's rate, of which each in flight has an even share, whether or not
the others' bytes move yet: gloo's two threads take turns, step by step of their rings. (Of 1 to 40 all-reduces of 2 MB
together, asked for at once or spread over 12 or 30 ms of compute, over 200 Mbit/s: 1.6 % off in the mean, 5 % at worst;
where only those share whose bytes move, 7 and 22 %.) As many run at once as the backend has lanes, in the order in
which they were asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Link:
    """`alpha_ns` of a call of no bytes, `bytes_per_ns` of what each call adds (1 byte per ns is 1 GB/s).

    `crowding`: of messages of so many bytes, ascending, how many times as long latency is while all lanes are taken:
    their threads share cores, and some of it passes while another's bytes move. Sizes between them are in between.
    """

    alpha_ns: float
    bytes_per_ns: float
    lanes: int = 1
    crowding: tuple[tuple[float, float], ...] = ()

    def alone_ns(self, size: float) -> float:
        """What a collective of so many bytes takes with the link to itself."""
        return self.alpha_ns + size / self.bytes_per_ns

    def crowded(self, size: float) -> float:
        """How many times as long the latency of so many bytes is while all lanes are taken."""
        return between(self.crowding, size) if self.crowding else 1.0


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """The value at a place between ascending ones, by its logarithm; outside of them that of the nearest."""
    places, values = zip(*points, strict=True)
    return float(np.interp(np.log(max(at, 1.0)), np.log(places), values))


@dataclass
class _Flight:
    """A collective under way: what is left of its latency, and of its bytes.

    `crowding`: how many times as long that latency is while all lanes are taken.
    """

    waits: float
    left: float
    crowding: float


class Wire:
    """A link from a moment on, ns. Collectives are told apart by numbers.

    `speed`, as which everything on it goes on until the next moment, is a share of what the link can do.
    """

    def __init__(self, link: Link, now: float) -> None:
        self._link, self._now = link, now
        self._asked: deque[tuple[int, float]] = deque()
        self._flying: dict[int, _Flight] = {}

    @property
    def busy(self) -> bool:
        """Whether any collective is in flight."""
        return bool(self._flying)

    def ask(self, number: int, size: float) -> None:
        """Every rank has come to a collective of so many bytes: it begins now, or when a lane is free."""
        self._asked.append((number, size))
        self._begin()

    def upcoming(self, speed: float = 1.0) -> float:
        """The next moment at which the link has something else to do; infinity where it has nothing."""
        return min((self._over_at(one, speed) for one in self._flying.values()), default=float("inf"))

    def move(self, to: float, speed: float = 1.0) -> list[int]:
        """Go on to a moment, at most the upcoming one. Returns the collectives that end there."""
        went = (to - self._now) * speed
        moved, full = went * self._rate(), self._full
        ended = []
        for number, one in self._flying.items():
            there = self._over_at(one, speed) <= to
            if one.waits:
                one.waits = 0.0 if there else one.waits - went / (one.crowding if full else 1.0)
            elif there:
                ended.append(number)
            else:
                one.left -= moved
        for number in ended:
            del self._flying[number]
        self._now = to
        self._begin()
        return ended

    def _begin(self) -> None:
        while self._asked and len(self._flying) < self._link.lanes:
            number, size = self._asked.popleft()
            self._flying[number] = _Flight(self._link.alpha_ns, size, self._link.crowded(size))

    @property
    def _full(self) -> bool:
        return 1 < self._link.lanes == len(self._flying)

    def _rate(self) -> float:
        return self._link.bytes_per_ns / max(1, len(self._flying))

    def _over_at(self, one: _Flight, speed: float) -> float:
        """When its latency is over, or else its bytes."""
        waits = one.waits * (one.crowding if self._full else 1.0)
        return self._now + (waits or one.left / self._rate()) / speed
