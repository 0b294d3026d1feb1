"""Finds temporal-difference targets that keep gradients, by the functions that a backward pass will run.

Such a target is `reward + discount * value`, and the loss compares it with another value of the same parameters.
Residuals of equations are left out (`target_signs`). In warm-up steps only: before a backward pass the part of its
graph that is nearest to the loss is read. Where it shows such a target, torch notes the lines of the next forward pass,
as in its anomaly mode, but checks no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.graph_passes import GraphPasses
from dptune.capture.injected.observe.loss_graph import below, constant_factor, consumers, only_input, shape_of
from dptune.capture.injected.observe.node_lines import node_line
from dptune.capture.injected.observe.target_signs import sign_of
from dptune.runfile.bootstrapped_targets import BootstrappedTargetFacts

_NODES = 256  # of a graph, the nearest to the loss
_BELOW = 20_000  # functions of a value that are followed to its parameters
_HOPS = 16  # between a loss and the discount
_LEAST_DISCOUNT = 0.5  # and below 1
_LOSSES = ("MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward")
_DIFFERENCE, _SQUARE = "SubBackward", "PowBackward"
_SUM, _PRODUCT = "AddBackward", "MulBackward"
_WHERE = "WhereBackward"
_SAME = (
    *("CloneBackward", "ToCopyBackward", "AliasBackward", "ViewBackward", "UnsafeViewBackward", "ExpandBackward"),
    *("ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward", _WHERE),
)


class _Sum(NamedTuple):
    node: Any  # the function that adds the reward
    discount: float
    value: Any  # the function that returns what is discounted
    ends: bool  # whether a mask of episode ends is among the factors


class _Target(NamedTuple):
    loss: Any
    summed: _Sum
    parameters: int
    sign: str


class BootstrappedTargets(GraphPasses[BootstrappedTargetFacts]):
    """Reads the graphs of the first backward passes."""

    def _read(self, roots: Any) -> None:
        for target in _targets(roots):
            key = (target.loss.name(), round(target.summed.discount, 6))
            known = self._found.setdefault(key, BootstrappedTargetFacts(*key, target.parameters))
            known.passes += 1
            known.sign = known.sign or target.sign
            known.where = known.where or node_line(target.summed.node)
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
            functions = below(value, _BELOW), below(bootstrapped.node, _BELOW)
            shared = _parameters(functions[0]) & _parameters(functions[1])
            if not shared:
                continue
            sign = sign_of(value, bootstrapped.value, functions, bootstrapped.ends)
            if sign is not None:
                yield _Target(node, bootstrapped, len(shared), sign)


def _compares(node: Any, readers: list[Any]) -> bool:
    """A loss of differences, or a difference that is squared."""
    if node.name().startswith(_LOSSES):
        return True
    return node.name().startswith(_DIFFERENCE) and any(reader.name().startswith(_SQUARE) for reader in readers)


def _bootstrapped(node: Any) -> _Sum | None:
    """The sum of a constant and a discounted value; None for anything else.

    The discount is the largest factor; a mask of ends may be among the factors. One number for each state, in one
    dimension, or in two if there is such a mask: sums of features are none.
    """
    summed, ends = _followed(node)
    if summed is None or not summed.name().startswith(_SUM) or len(summed.next_functions) != 2:
        return None
    value, selected = _followed(only_input(summed))
    ends |= selected
    discount, factors = 1.0, False
    for _ in range(_HOPS):
        if value is None or not value.name().startswith(_PRODUCT):
            break
        factor = constant_factor(value)
        if factor is None or not bool(((factor >= 0) & (factor <= 1)).all()):
            return None
        discount *= float(factor.max())
        factors |= factor.numel() > 1
        ends |= _is_mask(factor)
        value, selected = _followed(only_input(value))
        ends |= selected
    dimensions = [length for length in shape_of(summed) if length != 1]
    if value is None or not _LEAST_DISCOUNT <= discount < 1 or len(dimensions) > 1 + factors:
        return None
    return _Sum(summed, discount, value, ends)


def _is_mask(factor: torch.Tensor) -> bool:
    """One, or the discount, for each state that does not end an episode, and zero for the others."""
    largest = factor.max()
    ended = bool((factor == 0).any()) or float(largest) == 1
    return factor.numel() > 1 and ended and bool(((factor == 0) | (factor == largest)).all())


def _followed(node: Any) -> tuple[Any | None, bool]:
    """What a function was given that changes no value, but for those that it replaces by constants.

    And whether it replaces any.
    """
    replaced = False
    for _ in range(_HOPS):
        if node is None or not node.name().startswith(_SAME):
            return node, replaced
        replaced |= node.name().startswith(_WHERE)
        node = only_input(node)
    return None, replaced


def _parameters(functions: Sequence[Any]) -> set[int]:
    """The tensors with gradients that these functions lead to."""
    return {id(node.variable) for node in functions if hasattr(node, "variable")}
