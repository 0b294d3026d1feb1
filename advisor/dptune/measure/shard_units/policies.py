"""How units are sharded, by the facts of the lowest rank: every rank shards alike."""

from __future__ import annotations

from collections.abc import Mapping

from dptune.measured import ShardPolicy
from dptune.runfile.facts import Facts


def policies(facts: Mapping[int, Facts]) -> list[ShardPolicy]:
    """Of each line that calls fully_shard on modules with parameters of their own, in the order of the facts."""
    if not facts:
        return []
    return [
        ShardPolicy(
            where=fsdp.where,
            units=len(fsdp.names) or fsdp.units,
            modules=fsdp.modules,
            largest_bytes=max(fsdp.gathered_bytes, default=0),
            mesh=fsdp.mesh,
            reshard_after_forward=fsdp.reshard_after_forward,
            parameter_dtype=fsdp.parameter_dtype,
            reduce_dtype=fsdp.reduce_dtype,
            offload=fsdp.offload,
            forward_prefetch=fsdp.forward_prefetch_depth,
            backward_prefetch=fsdp.backward_prefetch_depth,
        )
        for fsdp in facts[min(facts)].fsdp
        if fsdp.mesh
    ]
