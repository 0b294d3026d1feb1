"""Tensors that stay alive from step to step, as counted between windows."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LookFacts:
    """The tensors that were alive after a step: `with_graph` of them have a `grad_fn`; `bytes` of storage in all."""

    step: int
    tensors: int = 0
    with_graph: int = 0
    bytes: int = 0


@dataclass
class KeptFacts:
    """What was alive at each look, and what became more between the first and the last.

    `shapes`: the shapes and dtypes of most of these bytes (`8x12x64x64 float32`). `held_by`: the collection that holds
    them, as `Class.attribute` or the name of a variable; empty where not found. `where` is the line that adds to it.
    `limited`: whether that collection has a limit, or is a cache of a data set.
    """

    looks: list[LookFacts] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    held_by: str = ""
    where: str | None = None
    limited: bool = False
