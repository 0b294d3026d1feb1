"""How a script shards whole blocks: the classes that a recording found in the model."""

from __future__ import annotations

from dptune.advice import Change, Location
from dptune.measured import digits
from dptune.rule import RunView

MIB = 2**20


def shard_blocks(run: RunView, sharded: list[str], least_mib: float) -> str:
    """What to write for units of whole blocks; empty where the model has no list of equal blocks.

    `sharded`: classes of the modules that are units now. Blocks below `least_mib` go several into one call.
    """
    name, sizes = _blocks(run)
    count = _together(sizes, least_mib)
    if not name or (count == 1 and name in sharded):
        return ""
    size = digits(max(sizes) / MIB)
    if count > 1:
        return f"Pass {count} blocks to each call, `fully_shard([...])`: a `{name}` has {size} MiB of parameters."
    return (
        f"Call `fully_shard` on each `{name}` ({len(sizes)} blocks of {size} MiB), then on the model, not on the "
        "modules inside."
    )


def wrap_blocks(run: RunView) -> str:
    """What to pass to FullyShardedDataParallel for units of whole blocks; empty without a list of equal blocks."""
    name, sizes = _blocks(run)
    if not name:
        return ""
    size = digits(max(sizes) / MIB)
    policy = f"auto_wrap_policy=ModuleWrapPolicy({{{name}}})"
    return f"Pass `{policy}` to FullyShardedDataParallel ({len(sizes)} units of {size} MiB)."


def units_of_blocks(run: RunView, sharded: list[str], least_mib: float, where: str | None) -> list[Change]:
    """The same as a change of the line that shards what are units now; none where that line is unknown."""
    name, sizes = _blocks(run)
    count = _together(sizes, least_mib)
    at = Location.parse(where)
    if at is None or not name:
        return []
    made = sum(fsdp.units for fsdp in run.any_facts().fsdp if set(fsdp.modules) == {name})
    now = -(-len(sizes) // made) if made else 1 if name in sharded else None
    if now is not None and count <= now:
        return []
    return [Change(knob="fsdp.blocks_per_unit", now=now, then=count, at=at, block=name)]


def number_of_units(run: RunView, least_mib: float) -> int | None:
    """How many units whole blocks make, with the root; None where the model has no list of equal blocks."""
    name, sizes = _blocks(run)
    return -(-len(sizes) // _together(sizes, least_mib)) + 1 if name else None


def _blocks(run: RunView) -> tuple[str, list[int]]:
    """The class of the model's blocks and the bytes of the parameters of each."""
    tensors = run.any_facts().tensors if run.facts else None
    if tensors is None or not tensors.block or not tensors.block_bytes:
        return "", []
    return tensors.block, tensors.block_bytes


def _together(sizes: list[int], least_mib: float) -> int:
    """How many blocks go into a unit of at least `least_mib`."""
    if len(sizes) < 2:
        return 1
    size = max(sizes) / MIB
    return int(min(-(-least_mib // size), len(sizes))) if size < least_mib else 1
