"""How units are sharded, by the facts of the lowest rank: every rank shards alike."""

from __future__ import annotations

from collections.abc import Mapping

from dptune.measure.shard_units.flat_events import SEVERAL_ROOTS
from dptune.measured import FlatPolicy, Missing, ShardPolicy
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import Facts


def policies(facts: Mapping[int, Facts]) -> list[ShardPolicy]:
    """Of each line that shards modules with parameters of their own, in the order of the facts."""
    if not facts:
        return []
    sharded = facts[min(facts)].fsdp
    named = any(fsdp.names for fsdp in sharded if fsdp.version == 1)  # a root without parameters has no name
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
            flat=_flat(fsdp) if fsdp.version == 1 else None,
        )
        for fsdp in sharded
        if fsdp.mesh and (fsdp.version == 2 or fsdp.names or not named)
    ]


def _flat(fsdp: FsdpFacts) -> FlatPolicy:
    return FlatPolicy(
        sharding_strategy=fsdp.strategy,
        backward_prefetch=fsdp.backward_prefetch,
        forward_prefetch=bool(fsdp.forward_prefetch),
        limit_all_gathers=fsdp.limit_all_gathers is not False,
    )


def flat_names(facts: Mapping[int, Facts]) -> list[str]:
    """The units of FullyShardedDataParallel in the order in which forward passes run them; none where not recorded.

    Raises Missing where several models have such an order.
    """
    flat = [fsdp for fsdp in facts[min(facts)].fsdp if fsdp.version == 1] if facts else []
    placed = sorted(each for fsdp in flat for each in zip(fsdp.order, fsdp.names, strict=False))
    if len({place for place, _ in placed}) < len(placed):
        raise Missing(SEVERAL_ROOTS)
    return [name for _, name in placed]
