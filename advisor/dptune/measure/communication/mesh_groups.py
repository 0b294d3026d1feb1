"""Process groups of FSDP's collectives over gloo, whose events name none.

Of a run with several groups a call of gloo could be of any. FSDP's hooks gather and reduce-scatter among the ranks that
shard a unit, the last dimension of the mesh, and all-reduce among its replicas, the first one. Which ranks those are
follows from the recorded shape of a mesh that holds the ranks in order; the trace lists the groups with their ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from dptune.measure.communication.calls import Call
from dptune.measure.communication.purposes import SHARDING, issuers, purposes
from dptune.measure.views import DeviceView, RankView
from dptune.runfile.facts import Facts

_SHARDED = ("all_gather", "reduce_scatter")
_REPLICATED = ("all_reduce",)
_Groups = dict[str, tuple[str, tuple[int, ...]]]  # by kind of collective: name and ranks


def in_mesh(view: RankView, device: DeviceView, calls: list[Call], facts: Facts | None) -> list[Call]:
    """The calls; those of FSDP's hooks that could be of several groups are of that of the mesh, where it is known."""
    if view.record is not None or facts is None or not any(call.ambiguous for call in calls):
        return calls
    groups = _groups(view, facts)
    if not groups:
        return calls
    rows = device.operations.rows.tolist()
    by = dict(zip(rows, issuers(view, device).tolist(), strict=True))
    issued_by = np.array([by[call.row] for call in calls], dtype=np.int64)
    hooked = (purposes(view.columns, issued_by) == SHARDING).tolist()
    return [
        _of(call, *groups[call.kind]) if inside and call.ambiguous and call.kind in groups else call
        for call, inside in zip(calls, hooked, strict=True)
    ]


def _of(call: Call, name: str, ranks: tuple[int, ...]) -> Call:
    return replace(call, group=name, group_size=len(ranks), members=str(list(ranks)), ambiguous=False)


def _groups(view: RankView, facts: Facts) -> _Groups:
    """The groups that FSDP's collectives of a rank are in; none where the mesh is not one, or not of all ranks."""
    meshes = {tuple(fsdp.mesh) for fsdp in facts.fsdp if fsdp.mesh}
    world_size = view.trace.distributed.world_size or facts.world_size
    if len(meshes) != 1 or len(mesh := meshes.pop()) > 2 or prod(mesh) != world_size:
        return {}
    shards = mesh[-1]
    first = view.rank - view.rank % shards
    found: _Groups = {}
    for kinds, ranks in (
        (_SHARDED, range(first, first + shards)),
        (_REPLICATED, range(view.rank % shards, world_size, shards)),
    ):
        name = _name(view, tuple(ranks))
        if name is not None and len(ranks) > 1:
            found.update(dict.fromkeys(kinds, (name, tuple(ranks))))
    return found


def _name(view: RankView, ranks: Sequence[int]) -> str | None:
    """The first listed group of these ranks; one that lists none holds all."""
    distributed = view.trace.distributed
    listed = (
        name
        for name, group in distributed.groups.items()
        if group.size == len(ranks)
        and (group.ranks == ranks or (not group.ranks and group.size == distributed.world_size))
    )
    return next(listed, None)
