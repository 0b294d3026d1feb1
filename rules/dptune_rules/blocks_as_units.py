"""How a script shards whole blocks: the classes that a recording found in the model."""

from __future__ import annotations

from dptune.measured import digits
from dptune.rule import RunView

MIB = 2**20


def shard_blocks(run: RunView, sharded: list[str], least_mib: float) -> str:
    """What to write for units of whole blocks; empty where the model has no list of equal blocks.

    `sharded`: classes of the modules that are units now. Blocks below `least_mib` go several into one call.
    """
    tensors = run.any_facts().tensors if run.facts else None
    if tensors is None or not tensors.block or not tensors.block_bytes:
        return ""
    size, name = max(tensors.block_bytes) / MIB, tensors.block
    together = -(-least_mib // size) if size < least_mib else 1.0  # rounded up
    if together > 1 and len(tensors.block_bytes) > 1:
        count = int(min(together, len(tensors.block_bytes)))
        return (
            f"Pass {count} blocks to each call, `fully_shard([...])`: a `{name}` has {digits(size)} MiB of parameters."
        )
    if name in sharded:
        return ""
    return (
        f"Call `fully_shard` on each `{name}` ({len(tensors.block_bytes)} of {digits(size)} MiB), then on the model, "
        "and not on the modules inside."
    )
