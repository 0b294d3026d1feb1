"""Recognizes KL divergences of Gaussian posteriors and reconstruction losses in an autograd graph.

The divergence from the standard normal distribution is -0.5 * (1 + log s^2 - m^2 - s^2) for each latent dimension, in
whatever order, with s^2 as exp(log s^2) or as a square: the sum of a square, of a second positive function, and of
the logarithm of that function with the opposite sign (Kingma and Welling, 2014, appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from dptune.capture.injected.observe.loss_graph import LOSSES, only_input, shape_of
from dptune.capture.injected.observe.loss_weights import addends, size, weight

_REDUCTIONS = ("SumBackward", "MeanBackward")
_MEAN = 1  # as torch numbers reductions
_SQUARE, _EXP, _LOG, _PRODUCT = "PowBackward0", "ExpBackward", "LogBackward", "MulBackward"
_FUNCTIONS = {  # by what the graph calls them
    "MseLossBackward": "mse_loss",
    "L1LossBackward": "l1_loss",
    "SmoothL1LossBackward": "smooth_l1_loss",
    "HuberLossBackward": "huber_loss",
    "BinaryCrossEntropyBackward": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward": "binary_cross_entropy_with_logits",
    **dict.fromkeys(LOSSES, "cross_entropy"),
}
_VIEWS = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward")
_KEPT = ("ToCopyBackward", "CloneBackward", "SqrtBackward", *_VIEWS)
_CHANGED = ("AddBackward", "SubBackward", "RsubBackward", "MulBackward", "DivBackward", "NegBackward")  # by constants
_HOPS = 16
_LEAF = "torch::autograd::AccumulateGrad"

Edge = tuple[Any, int]


class Term(NamedTuple):
    """A part of the loss: how much each value of it counts, how many there are, and the constants on the way.

    `shape`: of the values before they are reduced, or of what a loss compares. `function` is empty for a divergence.
    """

    weight: float
    values: int
    shape: tuple[int, ...]
    constants: tuple[float, ...]
    loss: Any
    node: Any
    function: str = ""


def divergences(readers: dict[Any, list[Any]]) -> Iterator[Term]:
    """Each KL divergence, by the node that sums it up or averages it first."""
    for node in readers:
        if not node.name().startswith(_REDUCTIONS):
            continue
        edge = _unviewed(node.next_functions[0])
        factor = _of_divergence(edge)
        if factor is not None and (term := _reduced(node, edge[0], readers)) is not None:
            yield term._replace(weight=2 * factor * term.weight, constants=(*term.constants, factor))


def reconstructions(readers: dict[Any, list[Any]]) -> Iterator[Term]:
    """Each loss that compares a result of the model with data: torch's, or a square of a difference."""
    for node in readers:
        name = node.name()
        function = next((function for start, function in _FUNCTIONS.items() if name.startswith(start)), None)
        if function is not None:
            values = _compared(node, name)
            found = weight(node, readers)
            if values and found is not None:
                count = math.prod(values)
                mean = count if node._saved_reduction == _MEAN else 1
                yield Term(found.factor / mean, count, values, found.constants, found.loss, node, function)
        elif name.startswith(_REDUCTIONS) and _is_squared_difference(edge := _unviewed(node.next_functions[0])):
            term = _reduced(node, edge[0], readers)
            if term is not None:
                yield term._replace(function="the squared error")


def _unviewed(edge: Edge) -> Edge:
    """The tensor that a view is of, in its shape."""
    while edge[0] is not None and edge[0].name().startswith(_VIEWS):
        edge = edge[0].next_functions[0]
    return edge


def _reduced(node: Any, reduced: Any, readers: dict[Any, list[Any]]) -> Term | None:
    """What a sum or mean reduces, as a term of the loss."""
    found = weight(node, readers)
    if found is None or not size(reduced):
        return None
    share = size(node) / size(reduced) if node.name().startswith("MeanBackward") else 1.0
    return Term(found.factor * share, size(reduced), shape_of(reduced), found.constants, found.loss, node)


def _compared(node: Any, name: str) -> tuple[int, ...]:
    """The shape of what a loss compares: of cross entropies without the classes."""
    given = node.next_functions[0][0]
    shape = shape_of(given) if given is not None else ()
    return (*shape[:1], *shape[2:]) if name.startswith(LOSSES) else shape


def _of_divergence(edge: Edge) -> float | None:
    """The factor of each square in a divergence, without its sign; None where these values are none."""
    if edge[0] is None or len(shape_of(edge[0])) < 2:
        return None
    leaves = list(_leaves(edge, 1.0, _HOPS))
    if len(leaves) != 3:
        return None
    logarithms = [(factor, edge) for factor, edge in leaves if not _is_square(edge) and not _is(edge, _EXP)]
    positive = [(factor, edge) for factor, edge in leaves if _is_square(edge) or _is(edge, _EXP)]
    if len(logarithms) != 1 or len(positive) != 2:
        return None
    ((log_factor, logarithm),) = logarithms
    variance = _base(logarithm)
    means = [each for each in positive if _base(each[1]) != variance]
    if len(means) != 1 or not _is_square(means[0][1]) or _base(means[0][1])[0].name() == _LEAF:
        return None
    first, second = (factor for factor, _ in positive)
    alike = math.isclose(first, second, rel_tol=1e-6) and first * log_factor < 0
    return abs(first) if alike else None


def _leaves(edge: Edge, factor: float, hops: int) -> Iterator[tuple[float, Edge]]:
    """The functions that elementwise sums add up, each with its factor."""
    node, _ = edge
    added = addends(node) if hops else None
    if added is None:
        yield factor, edge
        return
    for times, following in added:
        yield from _leaves(following, factor * times, hops - 1)


def _is(edge: Edge, name: str) -> bool:
    return bool(edge[0].name().startswith(name))


def _is_square(edge: Edge) -> bool:
    node = edge[0]
    if _is(edge, _SQUARE):
        return float(node._saved_exponent) == 2
    return _is(edge, _PRODUCT) and len(node.next_functions) == 2 and node.next_functions[0] == node.next_functions[1]


def _is_squared_difference(edge: Edge) -> bool:
    """Whether it is the square of a result of the model less data."""
    if edge[0] is None or not _is_square(edge):
        return False
    node = edge[0].next_functions[0][0]
    return node is not None and node.name().startswith("SubBackward") and only_input(node) is not None


def _base(edge: Edge) -> Edge:
    """What a square, an exponential or a logarithm is computed of, constants left out."""
    for _ in range(_HOPS):
        node = edge[0]
        name = node.name()
        inputs = [following for following in node.next_functions if following[0] is not None]
        kept = _is_square(edge) or name.startswith((_EXP, _LOG, *_KEPT, _SQUARE))
        if not kept and (not name.startswith(_CHANGED) or len(inputs) != 1):
            break
        edge = inputs[0]
    return edge
