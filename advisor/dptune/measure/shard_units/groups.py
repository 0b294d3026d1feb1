"""Waiting of units by process group: with HSDP, ranks wait in a group that shards and in one of replicas."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dptune.measure.communication.matching import MatchedCollective
from dptune.measure.device.phases import DeviceTimeline
from dptune.measure.shard_units.events import UnitCall
from dptune.measure.shard_units.in_flight import InFlight
from dptune.measured import UnitGroup

_Key = tuple[str | None, tuple[int, ...]]  # name and ranks of a group
_NOBODY = "no rank of the group waits"


@dataclass
class _Group:
    """What is added up of a group. `late_ns`: what the others wait for each rank."""

    kinds: dict[str, None] = field(default_factory=dict)
    late_ns: Counter[int] = field(default_factory=Counter)
    waiting_ns: int = 0
    steps: int = 0


def groups_of(
    spent: Sequence[DeviceTimeline], sent: Sequence[Sequence[UnitCall]], collectives: Sequence[MatchedCollective]
) -> list[UnitGroup]:
    """The groups of the units' collectives that were matched on all of their ranks, by their ranks."""
    groups: defaultdict[_Key, _Group] = defaultdict(_Group)
    of_units = {
        (view.rank, device.operations.device, each.call.row)
        for (view, device, _), calls in zip(spent, sent, strict=True)
        for each in calls
    }
    key_of: dict[tuple[int, str, int], _Key] = {}
    for collective in collectives:
        ranks = collective.ranks.tolist()
        rows = (call.row for call in collective.calls)
        events = list(zip(ranks, collective.devices, rows, strict=True))
        if collective.splits and of_units.issuperset(events):
            key = collective.group, tuple(sorted(ranks))
            key_of.update(dict.fromkeys(events, key))
            groups[key].kinds[collective.kind] = None
            last = int(collective.ranks[np.argmin(collective.end_ns - collective.start_ns)])
            groups[key].late_ns[last] += collective.waiting_ns
    for spent_by, calls in zip(spent, sent, strict=True):
        view, device, _ = spent_by
        places: defaultdict[_Key, list[int]] = defaultdict(list)
        for each in calls:
            event = view.rank, device.operations.device, each.call.row
            if event in key_of:
                places[key_of[event]].append(each.place)
        flight = InFlight(spent_by) if places else None
        for key, of_group in places.items():
            assert flight is not None
            groups[key].waiting_ns += flight.lengths_ns(of_group, "exposed_waiting_ns")[1]
            groups[key].steps += len(device.windows)
    order = sorted(groups, key=lambda key: (key[1], key[0] or ""))
    return [_figures(key, groups[key]) for key in order if groups[key].steps]


def _figures(key: _Key, group: _Group) -> UnitGroup:
    name, ranks = key
    total_ns = group.late_ns.total()
    last, late_ns = max(group.late_ns.items(), key=lambda each: each[1])
    waits = total_ns > 0 and group.waiting_ns > 0
    return UnitGroup.of(
        {
            "waited_for": (last if waits else None, _NOBODY),
            "waited_share": (late_ns / total_ns if waits else None, _NOBODY),
        },
        name=name or "",
        ranks=list(ranks),
        kinds=list(group.kinds),
        waiting_ns=round(group.waiting_ns / group.steps),
    )
