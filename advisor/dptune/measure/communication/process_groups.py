"""What each process group is for: data, tensor, pipeline, expert or context parallelism.

torch writes the groups of a process into its trace (`pg_config`): name, description and ranks. A description names the
dimension where a library gives one: DeviceMesh `mesh_tp` (`torch/distributed/device_mesh.py`), Megatron-LM
`TENSOR_MODEL_PARALLEL_GROUP` (`megatron/core/parallel_state.py`). Without one, the collectives show it: DDP's buckets
and FSDP's hooks for certain, all-reduces in forward and backward passes among neighbouring ranks likely. What could be
two dimensions (point-to-point: pipeline or context; all-to-all: experts or sequences) is not guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dptune.advice import Confidence
from dptune.measure.communication.matching import RankCalls
from dptune.measure.views import RankView
from dptune.measured import CommunicationFigures, ParallelDimension, ProcessGroupFigures
from dptune.trace.events import ProcessGroup

# Words of descriptions, and the dimensions that they name.
_WORDS: dict[str, tuple[ParallelDimension, ...]] = {
    **dict.fromkeys(("dp", "ddp", "data"), ("data",)),
    **dict.fromkeys(("shard", "fsdp"), ("shard",)),
    "replicate": ("replicate",),
    "hsdp": ("replicate", "shard"),
    **dict.fromkeys(("tp", "tensor"), ("tensor",)),
    **dict.fromkeys(("pp", "pipe", "pipeline"), ("pipeline",)),
    **dict.fromkeys(("ep", "expert"), ("expert",)),
    "etp": ("expert", "tensor"),
    "edp": ("expert", "data"),
    **dict.fromkeys(("cp", "context"), ("context",)),
    **dict.fromkeys(("sp", "sequence", "ulysses"), ("sequence",)),
}
_NO_DIMENSION = frozenset({"group", "pg", "mesh", "parallel", "model", "with", "and", "intra", "inter", "partial"})
_DEFAULT = ("0", "default_pg")  # as torch names it
_WORD = re.compile(r"[a-z]+")
_NO_RANKS = "the trace does not list its ranks"
_OTHER_RANKS = "groups of different ranks have this name"
_UNDESCRIBED = "the trace does not describe it"
_UNSEEN = "neither its description nor its collectives show what it is for"


class _Purpose(NamedTuple):
    dimensions: tuple[ParallelDimension, ...]
    confidence: Confidence
    basis: str


def process_groups(
    views: Iterable[RankView], rows: Sequence[CommunicationFigures], world_size: int | None
) -> list[ProcessGroupFigures]:
    """The groups of at least two ranks that the traces list, by name; `rows` are the collectives of the steps."""
    listed: dict[str, list[ProcessGroup]] = {}
    for view in views:
        for name, group in view.trace.distributed.groups.items():
            if group.size > 1:
                listed.setdefault(name, []).append(group)
    return [
        _figures(name, alike, [row for row in rows if row.known("group") == name], world_size)
        for name, alike in sorted(listed.items(), key=lambda item: (-item[1][0].size, item[1][0].ranks, item[0]))
    ]


def default_size(ranks: Iterable[RankCalls]) -> int | None:
    """The number of ranks in the default group, which all are in, by its collectives; None where they name none."""
    sizes = {call.group_size for of_rank in ranks for call in of_rank.calls if call.group in _DEFAULT}
    return sizes.pop() if len(sizes) == 1 else None


def replicas(groups: Sequence[ProcessGroupFigures], world_size: int | None) -> int | None:
    """How many replicas of the model take samples of their own; None where the number of ranks is not known.

    Ranks that share tensors or stages of a model work on the same samples.
    """
    sharing: dict[ParallelDimension, set[int]] = {}
    for group in groups:
        dimensions = group.known("dimensions") or []
        if len(dimensions) == 1 and dimensions[0] in ("tensor", "pipeline"):
            sharing.setdefault(dimensions[0], set()).add(group.size)
    if any(len(sizes) > 1 for sizes in sharing.values()):
        return None
    together = math.prod(size for sizes in sharing.values() for size in sizes)
    return world_size // together if world_size and world_size % together == 0 else None


def _figures(
    name: str, alike: Sequence[ProcessGroup], rows: Sequence[CommunicationFigures], world_size: int | None
) -> ProcessGroupFigures:
    first = alike[0]
    ranks = first.ranks if all(group.ranks == first.ranks for group in alike) else ()
    purpose = _described(first.description) or _used(rows, ranks, whole=first.size == world_size)
    missing = (None, _UNSEEN)
    return ProcessGroupFigures.of(
        {
            "description": (first.description or None, _UNDESCRIBED),
            "ranks": (list(ranks) or None, _OTHER_RANKS if first.ranks else _NO_RANKS),
            "dimensions": (list(purpose.dimensions), "") if purpose else missing,
            "confidence": (purpose.confidence, "") if purpose else missing,
            "basis": (purpose.basis, "") if purpose else missing,
        },
        name=name,
        size=first.size,
    )


def _described(description: str) -> _Purpose | None:
    """The dimensions that a description names; None for other words, as `data_loading` has."""
    words = _WORD.findall(description.lower())
    found = dict.fromkeys(dimension for word in words for dimension in _WORDS.get(word, ()))
    if found.keys() & {"shard", "replicate"}:
        found.pop("data", None)  # `dp_shard`
    if not found and {"model", "parallel"} <= set(words):
        found = dict.fromkeys(("tensor", "pipeline"))  # Megatron-LM's MODEL_PARALLEL_GROUP
    marked = "parallel" in words or "mesh" in words[:1]
    if not found or not (marked or all(word in _WORDS or word in _NO_DIMENSION for word in words)):
        return None
    return _Purpose(tuple(found), "high", f"its description, {description!r}")


def _used(rows: Sequence[CommunicationFigures], ranks: Sequence[int], *, whole: bool) -> _Purpose | None:
    """The dimension that its collectives show."""
    sharding = {row.kind for row in rows if row.known("purpose") == "sharding"}
    if sharding & {"all_gather", "reduce_scatter"}:
        return _Purpose(("shard",), "high", "FSDP's hooks gather and reduce-scatter in it")
    if "all_reduce" in sharding:
        return _Purpose(("replicate",), "high", "FSDP's hooks all-reduce in it")
    if any(row.kind == "all_reduce" and row.known("purpose") == "gradients" for row in rows):
        return _Purpose(("data",), "high", "gradients are all-reduced in it as they are accumulated")
    phases = {row.known("phase") for row in rows if row.kind == "all_reduce" and row.known("purpose") == "other"}
    neighbours = len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1
    if not whole and neighbours and {"forward", "backward"} <= phases:
        return _Purpose(("tensor",), "medium", "neighbouring ranks all-reduce in it in forward and backward passes")
    return None
