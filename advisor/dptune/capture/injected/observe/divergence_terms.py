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
from dptune.capture.injected.observe.loss_masks import VIEWS
from dptune.capture.injected.observe.loss_weights import Step, addends, path, size

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
_SQUARED = "the squared error"
_KEPT = ("ToCopyBackward", "CloneBackward", "SqrtBackward", *VIEWS)
_CHANGED = ("AddBackward", "SubBackward", "RsubBackward", "MulBackward", "DivBackward", "NegBackward")  # by constants
_HOPS = 16
_LEAF = "torch::autograd::AccumulateGrad"  # a parameter: of a layer whose weights have a distribution

Edge = tuple[Any, int]


class Divergence(NamedTuple):
    """The node that sums up a divergence or averages it first, and the path from there to the loss.

    `share`: what each value counts in what the node returns, 1 for a sum of -0.5 * (1 + ...); `factor`: that of its
    squares, 0.5 there. `shape`: of the values. `mean`: what the posterior's mean is computed of.
    """

    node: Any
    path: list[Step]
    share: float
    factor: float
    shape: tuple[int, ...]
    mean: Edge


class Reconstruction(NamedTuple):
    """A node that compares results of the model with data by `function`, and the path from there to the loss.

    `share`: what each value counts in what the node returns. `shape`: of what is compared. `factor`: that of a square,
    which the variance of a likelihood explains.
    """

    node: Any
    path: list[Step]
    share: float
    shape: tuple[int, ...]
    function: str
    factor: float = 1.0


def divergences(readers: dict[Any, list[Any]]) -> Iterator[Divergence]:
    """Each KL divergence, by the node that sums it up or averages it first."""
    for node in readers:
        if not node.name().startswith(_REDUCTIONS):
            continue
        edge = _unviewed(node.next_functions[0])
        found = _of_divergence(edge)
        if found is not None:
            factor, mean = found
            share = 2 * factor * _share(node, edge[0])
            yield Divergence(node, path(node, readers), share, factor, shape_of(edge[0]), mean)


def reconstructions(readers: dict[Any, list[Any]]) -> Iterator[Reconstruction]:
    """Each loss that compares a result of the model with data: torch's, or a square of a difference.

    Such a square is the logarithm of a normal distribution of one variance, too.
    """
    for node in readers:
        name = node.name()
        function = next((function for start, function in _FUNCTIONS.items() if name.startswith(start)), None)
        if function is not None and (shape := _compared(node, name)):
            share = 1 / math.prod(shape) if node._saved_reduction == _MEAN else 1.0
            yield Reconstruction(node, path(node, readers), share, shape, function)
        elif name.startswith(_REDUCTIONS) and (factor := _of_square(edge := _unviewed(node.next_functions[0]))):
            shape = shape_of(edge[0])
            yield Reconstruction(node, path(node, readers), _share(node, edge[0]), shape, _SQUARED, factor)


def _unviewed(edge: Edge) -> Edge:
    """The tensor that a view is of, in its shape."""
    while edge[0] is not None and edge[0].name().startswith(VIEWS):
        edge = edge[0].next_functions[0]
    return edge


def _share(node: Any, reduced: Any) -> float:
    """What each value counts in a sum or mean of them."""
    return size(node) / size(reduced) if node.name().startswith("MeanBackward") else 1.0


def _compared(node: Any, name: str) -> tuple[int, ...]:
    """The shape of what a loss compares: of cross entropies without the classes."""
    given = node.next_functions[0][0]
    shape = shape_of(given) if given is not None else ()
    return (*shape[:1], *shape[2:]) if name.startswith(LOSSES) else shape


def _of_divergence(edge: Edge) -> tuple[float, Edge] | None:
    """The factor of each square in a divergence, without its sign, and its mean; None where these values are none."""
    if edge[0] is None or len(shape_of(edge[0])) < 2 or not size(edge[0]):
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
    return (abs(first), _base(means[0][1])) if alike else None


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


def _of_square(edge: Edge) -> float | None:
    """The factor of the square of a result of the model less data, without its sign; None for other values."""
    if edge[0] is None:
        return None
    leaves = list(_leaves(edge, 1.0, _HOPS))
    if len(leaves) != 1 or not _is_square(leaves[0][1]):
        return None
    factor, (square, _) = leaves[0]
    node = square.next_functions[0][0]
    is_difference = node is not None and node.name().startswith("SubBackward") and only_input(node) is not None
    return abs(factor) if is_difference else None


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
