"""How much each value of a term counts in a loss, by the functions of the autograd graph between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dptune.capture.injected.observe.loss_graph import constant_factor, shape_of
from dptune.capture.injected.observe.loss_masks import VIEWS
from dptune.capture.injected.observe.loss_terms import constants

_ADDED, _SUBTRACTED, _SUBTRACTED_FROM = "AddBackward", "SubBackward", "RsubBackward"
_SUM, _MEAN = "SumBackward", "MeanBackward"
_SAME = (*VIEWS, "CloneBackward", "ToCopyBackward", "AliasBackward", "StackBackward", "CatBackward")
_NEGATED = "NegBackward"
_PRODUCTS = ("MulBackward", "DivBackward")


class Step(NamedTuple):
    """From a value to a node that is computed of it: the derivative of that, and the number it is multiplied by.

    `repeats`: how many sums the value is a part of, where it is added to more values.
    """

    node: Any
    factor: float
    constant: float | None
    repeats: float


class Weight(NamedTuple):
    """The derivative of a node with respect to each value of a term, without sign; constants and repeats in that."""

    factor: float
    constants: tuple[float, ...]
    repeats: float


def path(node: Any, readers: Mapping[Any, Sequence[Any]]) -> list[Step]:
    """From a term towards the loss, until it is used twice, or by another function than sums, means and constants."""
    steps: list[Step] = []
    while len(above := readers.get(node, ())) == 1:
        (reader,) = above
        factor = _factor(reader, node)
        if factor is None:
            break
        adds = addends(reader) is not None
        repeats = size(reader) / size(node) if adds else 1.0
        steps.append(Step(reader, factor * repeats, factor if adds else None, repeats))
        node = reader
    return steps


def weights(first: Sequence[Step], second: Sequence[Step]) -> tuple[Weight, Weight] | None:
    """Of two terms in the first node that is computed of both; None if their paths do not meet."""
    places = {step.node: place for place, step in enumerate(second)}
    at = next((place for place, step in enumerate(first) if step.node in places), None)
    if at is None:
        return None
    return _weight(first[: at + 1]), _weight(second[: places[first[at].node] + 1])


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
    """The number by which a node multiplies each value of its input; None if it does not, or by different ones."""
    factors = constants(node)
    if factors:
        return float(factors[0][0]) ** factors[0][1]
    name = node.name()
    if not name.startswith(_PRODUCTS) or len(node.next_functions) != 2:
        return None
    given = constant_factor(node)
    if given is None or (name.startswith("DivBackward") and node.next_functions[0][0] is None):
        return None
    number = float(given.flatten()[0])
    if not number or not bool((given == given.flatten()[0]).all()):
        return None
    return 1 / number if name.startswith("DivBackward") else number


def size(node: Any) -> int:
    """How many values a node returns."""
    return math.prod(shape_of(node))


def _weight(steps: Sequence[Step]) -> Weight:
    found = tuple(abs(step.constant) for step in steps if step.constant is not None)
    factor, repeats = (math.prod(each) for each in zip(*((step.factor, step.repeats) for step in steps), strict=True))
    return Weight(abs(factor), found, repeats)


def _kind(name: str) -> str:
    return next(kind for kind in (_ADDED, _SUBTRACTED, _SUBTRACTED_FROM) if name.startswith(kind))


def _factor(reader: Any, node: Any) -> float | None:
    name = reader.name()
    if name.startswith((_SUM, *_SAME)):
        return 1.0
    if name.startswith(_MEAN):
        return size(reader) / size(node)
    added = addends(reader)
    if added is None:
        return None
    return sum(factor for factor, (following, _) in added if following is node)
