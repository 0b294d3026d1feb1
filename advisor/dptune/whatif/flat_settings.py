"""Changes of FullyShardedDataParallel (FSDP1): which of them it does not have, and how it calls the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.runfile.facts import Facts

_FLAT = "FullyShardedDataParallel (FSDP1)"
_ARGUMENTS = {
    "fsdp.reshard_after_forward": "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
    "fsdp.forward_prefetch": "forward_prefetch=True",
    "fsdp.units": "auto_wrap_policy",
    "fsdp.blocks_per_unit": "auto_wrap_policy",
    "fsdp.param_dtype": "mixed_precision=MixedPrecision(param_dtype=...)",
    "fsdp.reduce_dtype": "mixed_precision=MixedPrecision(reduce_dtype=...)",
    "fsdp.no_sync": "model.no_sync()",
    "fsdp.within_hosts": "sharding_strategy=ShardingStrategy.HYBRID_SHARD",
}


def check(changes: Mapping[str, Value], facts: Sequence[Facts]) -> None:
    """Raise Missing for a change that FSDP1 does not have, or whose effect on it is not known."""
    if _is_flat(facts):
        for name, value in changes.items():
            if why := _lacks(name, value):
                raise Missing(why)


def arguments(changes: Mapping[str, Value], facts: Sequence[Facts]) -> list[str]:
    """What FSDP1 calls these changes; nothing of other runs."""
    names = dict.fromkeys(_ARGUMENTS[name] for name in changes if name in _ARGUMENTS)
    return [f"in {_FLAT} this is {' and '.join(names)}"] if names and _is_flat(facts) else []


def _is_flat(facts: Sequence[Facts]) -> bool:
    sharded = [fsdp for rank_facts in facts for fsdp in rank_facts.fsdp]
    return bool(sharded) and all(fsdp.version == 1 for fsdp in sharded)


def _lacks(name: str, value: Value) -> str:
    if name.startswith("ddp."):
        return f"{name} has no effect: the script uses {_FLAT}, not DistributedDataParallel"
    if name == "wrapper" and value == "ddp":
        return f"DistributedDataParallel in place of {_FLAT} is not predicted: the cost of its hooks was not measured"
    if name in ("fsdp.forward_prefetch", "fsdp.backward_prefetch") and int(value or 0) > 1:
        return f"{_FLAT} gathers at most one unit ahead"
    if name == "fsdp.reshard_after_forward" and value is not None and not isinstance(value, bool):
        return f"{_FLAT} cannot reshard to groups of ranks"
    return ""
