"""Whether settings of fully_shard are in force: read off the facts of its units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dptune.knobs.fsdp import DTYPES
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import Facts


class Explanation(str):
    """What a reading says instead of a value."""


# Values in force, one for each unit or module that has the setting; empty if none has it.
Reading = Callable[[Facts, Any], Iterator[Any]]


def units_of(rank_facts: Facts) -> list[FsdpFacts]:
    """What fully_shard shards, but units without parameters of their own."""
    return [fsdp for fsdp in rank_facts.fsdp if fsdp.version == 2 and fsdp.mesh]


def _reshard(rank_facts: Facts, value: bool | int | None) -> Iterator[Any]:
    """torch's default, None, reshards all units but the root; a number that is the size of the mesh is True."""
    for fsdp in units_of(rank_facts):
        wanted = not fsdp.root if value is None else value
        same_size = type(wanted) is int and wanted == fsdp.mesh[-1] and fsdp.reshard_after_forward is True
        as_asked = same_size or fsdp.reshard_after_forward == wanted
        yield value if as_asked else fsdp.reshard_after_forward


def _depth(field: str) -> Reading:
    """The most units that one prefetches: as many as requested, or all that follow it."""

    def read(rank_facts: Facts, value: int) -> Iterator[Any]:
        units = units_of(rank_facts)
        if units:
            deepest = max(getattr(fsdp, field) for fsdp in units)
            following = sum(len(fsdp.names) for fsdp in units) - 1
            yield value if deepest == min(int(value), following) else deepest

    return read


def _policy_dtype(field: str) -> Reading:
    words = {name: word for word, name in DTYPES.items()}

    def read(rank_facts: Facts, _: str | None) -> Iterator[Any]:
        for fsdp in units_of(rank_facts):
            dtype = getattr(fsdp, field)
            yield words.get(dtype, dtype)

    return read


def _unshards(rank_facts: Facts, value: bool) -> Iterator[Any]:
    """False is for units that hold only embeddings: one of them shows it."""
    if units := units_of(rank_facts):
        yield not any(fsdp.kept_sharded_in_backward for fsdp in units)


def _reshards_after_backward(rank_facts: Facts, value: bool) -> Iterator[Any]:
    return (fsdp.reshard_after_backward for fsdp in units_of(rank_facts))


def _blocks_per_unit(rank_facts: Facts, value: int) -> Iterator[Any]:
    """By the units that consist of blocks: the class of the model's largest list of equal modules."""
    tensors, units = rank_facts.tensors, units_of(rank_facts)
    if tensors is not None and tensors.block and units:
        made = sum(fsdp.units for fsdp in units if set(fsdp.modules) == {tensors.block})
        yield -(-len(tensors.block_bytes) // made) if made else Explanation("units are not whole blocks in the script")


def _within_hosts(rank_facts: Facts, value: bool) -> Iterator[Any]:
    return (len(fsdp.mesh) > 1 for fsdp in units_of(rank_facts))


def _offloads(rank_facts: Facts, value: bool) -> Iterator[Any]:
    return (fsdp.offload is not None for fsdp in units_of(rank_facts))


OF_UNITS: Mapping[str, Reading] = {
    "fsdp.reshard_after_forward": _reshard,
    "fsdp.forward_prefetch": _depth("forward_prefetch_depth"),
    "fsdp.backward_prefetch": _depth("backward_prefetch_depth"),
    "fsdp.param_dtype": _policy_dtype("parameter_dtype"),
    "fsdp.reduce_dtype": _policy_dtype("reduce_dtype"),
    "fsdp.unshard_in_backward": _unshards,
    "fsdp.reshard_after_backward": _reshards_after_backward,
    "fsdp.blocks_per_unit": _blocks_per_unit,
    "fsdp.within_hosts": _within_hosts,
    "fsdp.offload_policy": _offloads,
}


def flat_instead(name: str, rank_facts: Facts) -> str:
    """Why a setting of units is not in force where FullyShardedDataParallel makes them; empty where it does not."""
    if not name.startswith("fsdp.") or not any(fsdp.version == 1 for fsdp in rank_facts.fsdp):
        return ""
    return "dptune changes this for fully_shard (FSDP2) only; the script uses FullyShardedDataParallel (FSDP1)"
