"""Whether the clocks of the ranks agree, and by how much each is ahead of the first rank's.

Ranks of one host share a clock. Those of other hosts, or of unknown ones, are aligned on the ends of symmetric
collectives, which no rank can leave before the last has come; those ends are then no evidence of anything else. So are
those of one host whose collectives end too far apart for one clock: containers often bear the same name.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dptune.measure.communication.matching import MatchedCollective, RankCalls, match, possible
from dptune.measure.intervals import Ints

_TOO_FAR = 2  # times the transfer of a collective
_MOST_OFF = 2  # times the residual: two clocks that drift apart evenly are aligned in the middle


@dataclass(frozen=True)
class Clock:
    """`ahead_ns`: what to take off a rank's times to read them by the first rank's clock.

    `residual_ns` is how far the ends of collectives lie apart after that, the median of their distances; None where
    there was none to see it by.
    """

    ahead_ns: int
    residual_ns: int | None
    basis: Literal["reference", "host", "collectives"]

    @property
    def off_ns(self) -> int:
        """How far it may be off, where nothing else is known."""
        return _MOST_OFF * (self.residual_ns or 0)


def matched(
    ranks: Sequence[RankCalls], world_size: int | None, hosts: Mapping[int, str | None]
) -> tuple[list[MatchedCollective], dict[int, Clock]]:
    """The collectives of a run and the clocks of its ranks: each is derived from the other.

    First the ranks of one host are taken to share a clock. What the clocks then found deny is no collective.
    """
    reference = hosts[min(hosts)] if hosts else None
    supposed = {rank: Clock(0, None, "host") for rank, host in hosts.items() if host is not None and host == reference}
    found = clocks(match(ranks, world_size, supposed), hosts)
    collectives = [collective for collective in match(ranks, world_size, found) if possible(collective, found)]
    return collectives, found


def clocks(collectives: Sequence[MatchedCollective], hosts: Mapping[int, str | None]) -> dict[int, Clock]:
    """The clock of each rank that can be read by that of the lowest; ranks that cannot be are left out."""
    if not hosts:
        return {}
    apart: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for collective in collectives:
        if collective.symmetric:
            first, *others = collective.ranks.tolist()
            for at, rank in enumerate(others, 1):
                apart[first, rank].append((int(collective.end_ns[at] - collective.end_ns[0]), collective.transfer_ns))
    neighbours: dict[int, dict[int, tuple[Ints, float]]] = defaultdict(dict)
    for (first, rank), pairs in apart.items():
        between, transfers = np.array(pairs, dtype=np.int64).T
        too_far = _TOO_FAR * float(np.median(transfers))
        neighbours[first][rank], neighbours[rank][first] = (between, too_far), (-between, too_far)
    reference = min(hosts)
    found = {reference: Clock(0, None, "reference")}
    waiting = deque([reference])
    while waiting:
        known = waiting.popleft()
        for rank, (between, too_far) in sorted(neighbours[known].items()):
            if rank not in found:
                same = hosts[known] is not None and hosts[known] == hosts[rank]
                found[rank] = _clock(found[known], between, too_far if same else None)
                waiting.append(rank)
    for rank, host in hosts.items():
        if rank not in found and host is not None and host == hosts[reference]:
            found[rank] = Clock(0, None, "host")
    return found


def _clock(known: Clock, between: Ints, too_far_ns: float | None) -> Clock:
    """`between` is how far the ends lie apart; `too_far_ns` how far at most with one clock, None for two hosts."""
    residual = _middle(np.abs(between))
    if too_far_ns is not None and residual <= too_far_ns:
        return Clock(known.ahead_ns, residual, "host")
    shift = _middle(between)
    return Clock(known.ahead_ns + shift, _middle(np.abs(between - shift)), "collectives")


def _middle(values: Ints) -> int:
    return round(float(np.median(values)))
