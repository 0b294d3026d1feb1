"""Of each rank's collectives, when data moved and when a rank waited for another that had not come yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from dptune.measure.communication.matching import MatchedCollective
from dptune.measure.device.timeline import Split
from dptune.measure.intervals import Intervals


def splits(collectives: Iterable[MatchedCollective]) -> dict[tuple[int, str], Split]:
    """By rank and device, in nanoseconds since the epoch.

    Of a symmetric collective whose whole group was read the transfer is as long as its shortest duration, that of the
    last rank to come, and lies at its end; what comes before is waiting. Where a rank of the group was not read it may
    have come later still: what the others take longer than the shortest is waiting all the same, a lower bound, and the
    rest stays unsplit. So does all of other collectives.
    """
    moving: dict[tuple[int, str], list[tuple[int, int, int]]] = defaultdict(list)
    for collective in collectives:
        if collective.symmetric:
            transfer_ns = collective.transfer_ns
            for rank, device, start, end in zip(
                collective.ranks.tolist(),
                collective.devices,
                collective.start_ns.tolist(),
                collective.end_ns.tolist(),
                strict=True,
            ):
                moving[rank, device].append(
                    (start, end - transfer_ns, end if collective.complete else end - transfer_ns)
                )
    found = {}
    for key, times in moving.items():
        start, moved, end = np.array(times, dtype=np.int64).T
        found[key] = Split(transfer=Intervals.union(moved, end), waiting=Intervals.union(start, moved))
    return found
