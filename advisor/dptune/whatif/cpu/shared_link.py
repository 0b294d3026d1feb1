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
from functools import lru_cache
from math import inf

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
        return _crowded(self.crowding, size) if self.crowding else 1.0


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """The value at a place between ascending ones, by its logarithm; outside of them that of the nearest."""
    places, values = zip(*points, strict=True)
    return float(np.interp(np.log(max(at, 1.0)), np.log(places), values))


_crowded = lru_cache(maxsize=1024)(between)  # of the few sizes of a run, in each of its replays


@dataclass(slots=True)
class _Flight:
    """A collective under way: what is left of its latency, and of its bytes.

    `crowding`: how many times as long that latency is while all lanes are taken. `over`: when the latency is over, or
    else the bytes, if nothing else happens before.
    """

    number: int
    waits: float
    left: float
    crowding: float
    over: float = inf


class Wire:
    """A link from a moment on, ns. Collectives are identified by numbers."""

    def __init__(self, link: Link, now: float) -> None:
        self._link, self._now, self._speed = link, now, 1.0
        self._asked: deque[tuple[int, float]] = deque()
        self._flying: list[_Flight] = []
        # Of those in flight: the rate at which each one's bytes move, and whether they take all of several lanes.
        self._rate, self._full = link.bytes_per_ns, False

    @property
    def busy(self) -> bool:
        """Whether any collective is in flight."""
        return bool(self._flying)

    def ask(self, number: int, size: float) -> None:
        """Every rank has come to a collective of so many bytes: it begins now, or when a lane is free."""
        self._asked.append((number, size))
        self._begin()

    def upcoming(self, speed: float = 1.0) -> float:
        """The next moment at which the link has something else to do; infinity where it has nothing.

        Until then everything on it goes on at that share of what the link can do.
        """
        self._speed, soonest = speed, inf
        for flight in self._flying:
            waits = flight.waits * flight.crowding if self._full else flight.waits
            flight.over = over = self._now + (waits or flight.left / self._rate) / speed
            if over < soonest:
                soonest = over
        return soonest

    def move(self, to: float) -> list[int]:
        """Go on to a moment, at most the upcoming one, which has been asked for. Returns the collectives that end."""
        if not self._flying:
            self._now = to
            return []
        went = (to - self._now) * self._speed
        moved, ended = went * self._rate, []
        for flight in self._flying:
            there = flight.over <= to
            if flight.waits:
                flight.waits = 0.0 if there else flight.waits - went / (flight.crowding if self._full else 1.0)
            elif there:
                ended.append(flight.number)
            else:
                flight.left -= moved
        self._now = to
        if ended:
            self._flying = [flight for flight in self._flying if flight.number not in ended]
            self._begin()
        return ended

    def _begin(self) -> None:
        while self._asked and len(self._flying) < self._link.lanes:
            number, size = self._asked.popleft()
            self._flying.append(_Flight(number, self._link.alpha_ns, size, self._link.crowded(size)))
        self._rate = self._link.bytes_per_ns / max(1, len(self._flying))
        self._full = 1 < self._link.lanes == len(self._flying)
