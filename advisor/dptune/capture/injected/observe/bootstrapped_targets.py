"""Finds temporal-difference targets that keep gradients, by the functions that a backward pass will run.

Such a target is `reward + discount * value`, and the loss compares it with another value of the same parameters. In
warm-up steps only: before a backward pass the part of its graph that is nearest to the loss is read. Where it shows
such a target, torch notes the lines of the next forward pass, as in its anomaly mode, but checks no values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.graph_passes import GraphPasses
from dptune.capture.injected.observe.loss_graph import consumers, shape_of
from dptune.capture.injected.observe.loss_masks import readable
from dptune.capture.injected.observe.node_lines import node_line
from dptune.runfile.bootstrapped_targets import BootstrappedTargetFacts

_NODES = 256  # of a graph, the nearest to the loss
_BELOW = 20_000  # functions of a value that are followed to its parameters
_HOPS = 16  # between a loss and the discount
_LEAST_DISCOUNT = 0.5  # and below 1
_LOSSES = ("MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward")
_DIFFERENCE, _SQUARE = "SubBackward", "PowBackward"
_SUM, _PRODUCT = "AddBackward", "MulBackward"
_SAME = (
    *("CloneBackward", "ToCopyBackward", "AliasBackward", "ViewBackward", "UnsafeViewBackward", "ExpandBackward"),
    *("ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward", "WhereBackward"),
)


class _Target(NamedTuple):
    loss: Any
    summed: Any  # the function that adds the reward
    discount: float
    parameters: int


class BootstrappedTargets(GraphPasses[BootstrappedTargetFacts]):
    """Reads the graphs of the first backward passes."""

    def _read(self, roots: Any) -> None:
        for target in _targets(roots):
            key = (target.loss.name(), round(target.discount, 6))
            known = self._found.setdefault(key, BootstrappedTargetFacts(*key, target.parameters))
            known.passes += 1
            known.where = known.where or node_line(target.summed)
            known.loss_where = known.loss_where or node_line(target.loss)


def _targets(roots: Any) -> Iterator[_Target]:
    tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    readers = consumers((tensor.grad_fn for tensor in tensors), _NODES)
    for node, reading in readers.items():
        sides = [following for following, _ in node.next_functions if following is not None]
        if len(sides) != 2 or not _compares(node, reading):
            continue
        found = [_bootstrapped(side) for side in sides]
        for at, (value, bootstrapped) in enumerate(zip(sides, reversed(found), strict=True)):
            if bootstrapped is None or found[at] is not None:
                continue
            summed, discount = bootstrapped
            shared = _parameters(value) & _parameters(summed)
            if shared:
                yield _Target(node, summed, discount, len(shared))


def _compares(node: Any, readers: list[Any]) -> bool:
    """A loss of differences, or a difference that is squared."""
    if node.name().startswith(_LOSSES):
        return True
    return node.name().startswith(_DIFFERENCE) and any(reader.name().startswith(_SQUARE) for reader in readers)


def _bootstrapped(node: Any) -> tuple[Any, float] | None:
    """The sum of a constant and a discounted value, with the discount; None for anything else.

    The discount is the largest factor; a mask of ends may be among the factors. One number for each state, in one
    dimension, or in two if there is such a mask: sums of features are none.
    """
    summed = _followed(node)
    if summed is None or not summed.name().startswith(_SUM) or len(summed.next_functions) != 2:
        return None
    node = _followed(_only_input(summed))
    discount, masked = 1.0, False
    for _ in range(_HOPS):
        if node is None or not node.name().startswith(_PRODUCT):
            break
        factor = _factor(node)
        if factor is None or not bool(((factor >= 0) & (factor <= 1)).all()):
            return None
        discount *= float(factor.max())
        masked |= factor.numel() > 1
        node = _followed(_only_input(node))
    dimensions = [length for length in shape_of(summed) if length != 1]
    if not _LEAST_DISCOUNT <= discount < 1 or len(dimensions) > 1 + masked:
        return None
    return summed, discount


def _followed(node: Any) -> Any | None:
    """What a function that changes no value, but for those that it replaces by constants, was given."""
    for _ in range(_HOPS):
        if node is None or not node.name().startswith(_SAME):
            return node
        node = _only_input(node)
    return None


def _only_input(node: Any) -> Any | None:
    """The one input with gradients; None if there are several."""
    inputs = [following for following, _ in node.next_functions if following is not None]
    return inputs[0] if len(inputs) == 1 else None


def _factor(node: Any) -> torch.Tensor | None:
    """The constant by which a product multiplies its only input with gradients."""
    if _only_input(node) is None:
        return None
    name = "self" if node.next_functions[0][0] is None else "other"
    factor = getattr(node, f"_saved_{name}") if readable(node, name) else None
    return factor.detach() if type(factor) is torch.Tensor and factor.numel() else None


def _parameters(node: Any) -> set[int]:
    """Those that a value depends on; none if there are too many functions to follow."""
    found: set[int] = set()
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
        if len(seen) > _BELOW:
            return set()
    return found
