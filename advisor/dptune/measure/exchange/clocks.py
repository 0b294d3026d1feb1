"""Whether the clocks of the ranks agree, and by how much each is ahead of the first rank's.

Ranks of one host share a clock. Those of other hosts, or of unknown ones, are aligned on the ends of symmetric
collectives, which no rank can leave before the last has come; those ends are then no evidence of anything else.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dptune.measure.exchange.matching import Exchange
from dptune.measure.intervals import Ints


@dataclass(frozen=True)
class Clock:
    """`ahead_ns`: what to take off a rank's times to read them by the first rank's clock.

    `residual_ns` is how far the ends of collectives lie apart after that, the median of their distances; None where
    there was none to see it by.
    """

    ahead_ns: int
    residual_ns: int | None
    basis: Literal["reference", "host", "collectives"]


def clocks(exchanges: Sequence[Exchange], hosts: Mapping[int, str | None]) -> dict[int, Clock]:
    """The clock of each rank that can be read by that of the lowest; ranks that cannot be are left out."""
    if not hosts:
        return {}
    apart: dict[tuple[int, int], list[Ints]] = defaultdict(list)
    for exchange in exchanges:
        if exchange.symmetric:
            first, *others = exchange.ranks.tolist()
            for at, rank in enumerate(others, 1):
                apart[first, rank].append(exchange.end_ns[at] - exchange.end_ns[0])
    neighbours: dict[int, dict[int, Ints]] = defaultdict(dict)
    for (first, rank), differences in apart.items():
        between = np.array(differences, dtype=np.int64)
        neighbours[first][rank], neighbours[rank][first] = between, -between
    reference = min(hosts)
    found = {reference: Clock(0, None, "reference")}
    waiting = deque([reference])
    while waiting:
        known = waiting.popleft()
        for rank, between in sorted(neighbours[known].items()):
            if rank not in found:
                found[rank] = _clock(found[known], between, hosts[known], hosts[rank])
                waiting.append(rank)
    for rank, host in hosts.items():
        if rank not in found and host is not None and host == hosts[reference]:
            found[rank] = Clock(0, None, "host")
    return found


def _clock(known: Clock, between: Ints, host: str | None, other: str | None) -> Clock:
    same = host is not None and host == other
    shift = 0 if same else round(float(np.median(between)))
    residual = round(float(np.median(np.abs(between - shift))))
    return Clock(known.ahead_ns + shift, residual, "host" if same else "collectives")
