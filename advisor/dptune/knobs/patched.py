"""Settings that only a change of the script makes: nothing sets them from outside, a patch does."""

from __future__ import annotations

from types import MappingProxyType

from dptune.knobs.fsdp import FSDP as FULLY_SHARD
from dptune.knobs.knob import Knob, Value

DDP, FSDP = WRAPPERS = ("ddp", "fsdp")

WRAPPER = Knob(
    "wrapper",
    str,
    "",
    DDP,
    "same",
    "parallelism: ddp replicates the model on each rank, fsdp shards it into `fsdp.units` units",
    "model = DistributedDataParallel(model)  # instead of all fully_shard() calls",
    WRAPPERS,
    predicted="step",
)
BLOCKS = Knob(
    "fsdp.blocks_per_unit",
    int,
    "blocks",
    1,
    "same",
    "blocks of the model that one call of fully_shard groups into a unit",
    "fully_shard([...])  # {then} whole blocks in each call, and no modules inside them",
    least=1,
    call=FULLY_SHARD,
    predicted="step",
)
WITHIN_HOSTS = Knob(
    "fsdp.within_hosts",
    bool,
    "",
    False,
    "same",
    "HSDP: shards within each host, replicas between hosts",
    "fully_shard(module, ..., mesh=init_device_mesh(...))  # a 2-D mesh: hosts, ranks of a host",
    call=FULLY_SHARD,
    predicted="step",
)
OFFLOAD = Knob(
    "fsdp.offload_policy",
    bool,
    "",
    False,
    "same",
    "CPUOffloadPolicy: the host holds shards and state",
    "fully_shard(module, ..., offload_policy=CPUOffloadPolicy())",
    paste_off="fully_shard(module, ...)  # without offload_policy",
    call=FULLY_SHARD,
)

PATCHED: MappingProxyType[str, Knob] = MappingProxyType(
    {knob.name: knob for knob in (WRAPPER, BLOCKS, WITHIN_HOSTS, OFFLOAD)}
)


def is_patched(name: str, value: Value) -> bool:
    """Whether only a patch of the script sets a knob to this value."""
    return name in PATCHED or (name == "memory.checkpointing" and value is True)


def mesh_line(device: str, hosts: int, ranks_per_host: int) -> str:
    """The line of a script that creates a mesh for `fsdp.within_hosts`."""
    return f'mesh = init_device_mesh("{device}", ({hosts}, {ranks_per_host}), mesh_dim_names=("replicate", "shard"))'
