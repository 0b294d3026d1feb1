"""Process groups by what they are for: `tensor parallel, ranks 0-3`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from dptune.measured import ParallelDimension, ProcessGroupFigures
from dptune.present.amounts import several

_DIMENSIONS: dict[ParallelDimension, str] = {
    "data": "data parallel",
    "shard": "FSDP shard",
    "replicate": "FSDP replicate",
    "tensor": "tensor parallel",
    "pipeline": "pipeline parallel",
    "expert": "expert parallel",
    "context": "context parallel",
    "sequence": "sequence parallel",
}
_MOST_RANKS = 8  # listed one by one
_MOST_GROUPS = 8


def group_name(name: str, groups: Iterable[ProcessGroupFigures]) -> str:
    """The name of a group in a table, with what it is for: `3 tensor`."""
    return f"{name} {parallel_dimensions(name, groups)}".rstrip()


def parallel_dimensions(name: str | None, groups: Iterable[ProcessGroupFigures]) -> str:
    """What a group splits, in short: `tensor`, `shard+context`; empty where not known."""
    return "+".join(next((group.known("dimensions") or [] for group in groups if group.name == name), []))


def group_rows(groups: Sequence[ProcessGroupFigures]) -> list[str]:
    """A sentence for each group whose purpose is known; of many, the first."""
    known = [group for group in groups if group.known("dimensions")]
    rows = [_row(group) for group in known[:_MOST_GROUPS]]
    if len(known) > len(rows):
        rows.append(f"and {several(len(known) - len(rows), 'more group')}: see --format json")
    return rows


def _dimensions(group: ProcessGroupFigures) -> str:
    """`tensor parallel`, or `data + context parallel` of a group that spans several dimensions."""
    found = [_DIMENSIONS[dimension] for dimension in group.known("dimensions") or []]
    last = len(found) - 1
    parts = [name.removesuffix(" parallel") if at < last else name for at, name in enumerate(found)]
    return " + ".join(parts)


def _row(group: ProcessGroupFigures) -> str:
    ranks = group.known("ranks")
    where = rank_list(ranks) if ranks else several(group.size, "rank")
    return f"{group.name}: {_dimensions(group)}, {where} ({group.confidence} confidence: {group.basis})"


def rank_list(ranks: Sequence[int]) -> str:
    """`ranks 0-3`, `ranks 0-6 in steps of 2`, or each of a few."""
    strides = {after - before for before, after in itertools.pairwise(ranks)}
    if len(ranks) > 2 and len(strides) == 1:
        stride = strides.pop()
        span = f"ranks {ranks[0]:,}-{ranks[-1]:,}"
        return span if stride == 1 else f"{span} in steps of {stride:,}"
    listed = ", ".join(f"{rank:,}" for rank in ranks[:_MOST_RANKS])
    return f"ranks {listed}" + (f", ... ({len(ranks):,} ranks)" if len(ranks) > _MOST_RANKS else "")
