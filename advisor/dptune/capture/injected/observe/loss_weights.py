"""How much each value of a term counts in the loss, by the functions of the autograd graph between them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dptune.capture.injected.observe.loss_graph import shape_of
from dptune.capture.injected.observe.loss_terms import constants

_ADDED, _SUBTRACTED, _SUBTRACTED_FROM = "AddBackward", "SubBackward", "RsubBackward"
_SUM, _MEAN = "SumBackward", "MeanBackward"
_SAME = (
    *("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward"),
    *("CloneBackward", "ToCopyBackward", "AliasBackward", "StackBackward", "CatBackward"),
)
_NEGATED = "NegBackward"


class Weight(NamedTuple):
    """The derivative of the loss with respect to each value, and the constants in it that the script multiplies by."""

    factor: float
    constants: tuple[float, ...]
    loss: Any


def weight(node: Any, readers: dict[Any, list[Any]]) -> Weight | None:
    """Of what a node returns; None where it is used twice, or more than sums, means and constants are on the way."""
    factor, found = 1.0, []
    while above := readers.get(node):
        if len(above) != 1:
            return None
        (reader,) = above
        step = _factor(reader, node)
        if step is None:
            return None
        factor *= step
        found += [abs(number) for number in [multiplier(reader)] if number is not None]
        node = reader
    return Weight(abs(factor), tuple(found), node)


def addends(node: Any) -> list[tuple[float, tuple[Any, int]]] | None:
    """The inputs that a node adds up, as edges of the graph, each with its factor; None for other functions."""
    name = node.name()
    edges = list(node.next_functions)
    if name.startswith(_NEGATED):
        return [(-1.0, edges[0])]
    if name.startswith((_ADDED, _SUBTRACTED, _SUBTRACTED_FROM)):
        alpha = float(getattr(node, "_saved_alpha", 1))
        first, second = {_ADDED: (1.0, alpha), _SUBTRACTED: (1.0, -alpha)}.get(_kind(name), (-alpha, 1.0))
        factors = (first, second)[: len(edges)]
        return [(factor, edge) for factor, edge in zip(factors, edges, strict=True) if edge[0] is not None]
    number = multiplier(node)
    if number is None:
        return None
    return [(number, edge) for edge in edges if edge[0] is not None]


def multiplier(node: Any) -> float | None:
    """The number by which a node multiplies its input; None if it does not."""
    factors = constants(node)
    return float(factors[0][0]) ** factors[0][1] if factors else None


def size(node: Any) -> int:
    """How many values a node returns."""
    return math.prod(shape_of(node))


def _kind(name: str) -> str:
    return next(kind for kind in (_ADDED, _SUBTRACTED, _SUBTRACTED_FROM) if name.startswith(kind))


def _factor(reader: Any, node: Any) -> float | None:
    name = reader.name()
    if name.startswith(_SUM) or name.startswith(_SAME):
        return 1.0
    if name.startswith(_MEAN):
        return size(reader) / size(node)
    added = addends(reader)
    if added is None:
        return None
    factor = sum(factor for factor, (following, _) in added if following is node)
    return factor * size(reader) / size(node)
