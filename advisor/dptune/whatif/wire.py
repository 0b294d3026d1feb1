"""Collectives that share one link, as time goes on.

A collective takes alpha, then its bytes at the link's rate, which those in flight share evenly. As many run at once as
the backend has lanes (gloo two threads), in the order in which they were asked for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """`alpha_ns` of a call of no bytes, `bytes_per_ns` of what each call adds (1 byte per ns is 1 GB/s)."""

    alpha_ns: float
    bytes_per_ns: float
    lanes: int = 1

    def alone_ns(self, size: float) -> float:
        """What a collective of so many bytes takes with the link to itself."""
        return self.alpha_ns + size / self.bytes_per_ns


@dataclass
class _Flight:
    """A collective under way: its bytes begin to move at a moment, and so many are left of them."""

    moves_at: float
    left: float


class Wire:
    """A link from a moment on, ns. Collectives are told apart by numbers."""

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

    def upcoming(self) -> float:
        """The next moment at which the link has something else to do; infinity where it has nothing."""
        moments = [self._over_at(one) if one.moves_at <= self._now else one.moves_at for one in self._flying.values()]
        return min(moments, default=float("inf"))

    def move(self, to: float) -> list[int]:
        """Go on to a moment, at most the upcoming one. Returns the collectives that end there."""
        moving = {number: one for number, one in self._flying.items() if one.moves_at <= self._now}
        ended = [number for number, one in moving.items() if self._over_at(one) <= to]
        moved = (to - self._now) * self._rate()
        for number, one in moving.items():
            if number in ended:
                del self._flying[number]
            else:
                one.left -= moved
        self._now = to
        self._begin()
        return ended

    def _begin(self) -> None:
        while self._asked and len(self._flying) < self._link.lanes:
            number, size = self._asked.popleft()
            self._flying[number] = _Flight(self._now + self._link.alpha_ns, size)

    def _rate(self) -> float:
        moving = sum(one.moves_at <= self._now for one in self._flying.values())
        return self._link.bytes_per_ns / max(1, moving)

    def _over_at(self, one: _Flight) -> float:
        return self._now + one.left / self._rate()
