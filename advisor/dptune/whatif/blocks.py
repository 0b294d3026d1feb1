"""How many units of fully_shard there are with so many blocks of the model in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import Facts

Model = TypeVar("Model")
_BLOCKS, _UNITS = "fsdp.blocks_per_unit", "fsdp.units"
UNKNOWN = "the recording does not show that each unit of fully_shard is one or more whole blocks of the model"


def as_units(changes: Mapping[str, Value], facts: Sequence[Facts]) -> dict[str, Value]:
    """The changes with a number of units in place of blocks. Raises Missing where the recording does not tell it."""
    blocks = changes.get(_BLOCKS)
    if blocks is None:
        return dict(changes)
    if _UNITS in changes:
        raise Missing(f"set either {_BLOCKS} or {_UNITS}")
    tensors = facts[0].tensors if facts else None
    units = [fsdp for fsdp in facts[0].fsdp if fsdp.version == 2] if facts else []
    made = sum(fsdp.units for fsdp in units if tensors is not None and set(fsdp.modules) == {tensors.block})
    if tensors is None or not tensors.block or not made:
        raise Missing(UNKNOWN)
    others = sum(_with_parameters(fsdp) for fsdp in units if set(fsdp.modules) != {tensors.block})  # such as the root
    count = -(-len(tensors.block_bytes) // int(blocks)) + others
    return {_UNITS if name == _BLOCKS else name: count if name == _BLOCKS else value for name, value in changes.items()}


def _with_parameters(fsdp: FsdpFacts) -> int:
    """How many of its units have any: a root whose blocks hold all gathers nothing, and has no mesh."""
    return len(fsdp.names) or (fsdp.units if fsdp.mesh else 0)


def unknown(model: Model, value: Value) -> Model:
    """A model of steps knows no blocks: a number of units takes their place before."""
    raise Missing(UNKNOWN)
