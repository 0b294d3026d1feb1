"""When collectives end that share one link, from when each could begin.

A collective takes alpha, then its bytes at the link's rate, which those in flight share evenly. As many run at once as
the backend has lanes (gloo two threads), in the order in which they were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def ends(ready_ns: Sequence[float], sizes: Sequence[float], link: Link) -> list[float]:
    """When each collective ends. `ready_ns` says from when on every rank could begin it, in the order of asking."""
    ended = [0.0] * len(sizes)
    left = [float(size) for size in sizes]
    flying: list[int] = []  # in flight, past or before their latency
    moves_at: dict[int, float] = {}  # when the bytes of one begin to move
    now, following = 0.0, 0
    while flying or following < len(sizes):
        while following < len(sizes) and len(flying) < link.lanes and ready_ns[following] <= now:
            flying.append(following)
            moves_at[following] = now + link.alpha_ns
            following += 1
        moving = [one for one in flying if moves_at[one] <= now]
        rate = link.bytes_per_ns / max(1, len(moving))
        over_at = {one: now + left[one] / rate for one in moving}
        moments = [*over_at.values(), *(moves_at[one] for one in flying if moves_at[one] > now)]
        if following < len(sizes) and len(flying) < link.lanes:
            moments.append(ready_ns[following])
        then = min(moments)
        for one in moving:
            if over_at[one] <= then:
                ended[one] = then
                flying.remove(one)
            else:
                left[one] -= (then - now) * rate
        now = then
    return ended
