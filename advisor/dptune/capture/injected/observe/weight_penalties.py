"""Finds squares of trainable weights that are summed up in the loss: an L2 penalty.

In a few backward passes of the warm-up steps, from the autograd graph of the loss: squares of leaves that are reduced
to one number. A graph has no lines, so the operators that can have squared them are wrapped until the next pass.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

from dptune.capture.injected.observe.loss_graph import consumers, shape_of, signed
from dptune.capture.injected.observe.places import Places, users_function
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators
from dptune.runfile.weight_penalties import WeightPenaltyFacts

_PASSES = 4  # that are read
_LEAF = "torch::autograd::AccumulateGrad"
_REDUCTIONS = ("SumBackward", "MeanBackward")
_NORMS = ("LinalgVectorNormBackward", "NormBackward")
_POWER = "PowBackward"
_PRODUCT = "MulBackward"
_OPERATORS: tuple[tuple[Any, str], ...] = (
    *((torch.Tensor, name) for name in ("pow", "__pow__", "square", "norm", "mul", "__mul__")),
    *((torch, name) for name in ("pow", "square", "norm", "mul")),
    *((torch.linalg, name) for name in ("norm", "vector_norm")),
)


class WeightPenalties:
    """Reads the graphs of the first backward passes."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._operators = WrappedOperators(self._note)
        self._squared: dict[int, torch.Tensor] = {}  # weights, by identity
        self._facts = WeightPenaltyFacts()

    def begin(self) -> None:
        """Read the backward passes from now on, but none of code that torch.compile hides."""
        self._watching = not self._places.compiled

    def before_pass(self, roots: Any) -> None:
        """A backward pass is about to start at these tensors."""
        if not self._watching:
            return
        self._operators.unwrap()
        with contextlib.suppress(Exception):  # a graph may be anything
            if self._facts.passes_seen >= _PASSES:
                return
            self._facts.passes_seen += 1
            tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
            self._squared = {id(weight): weight for weight in _squared_weights(tensors)}
            if self._squared:
                self._facts.passes += 1
                self._facts.tensors = len(self._squared)
                self._facts.elements = sum(weight.numel() for weight in self._squared.values())
                for holder, name in () if self._facts.function else _OPERATORS:
                    self._operators.wrap(holder, name)

    def end(self) -> None:
        """Read no more."""
        self._watching = False
        self._operators.unwrap()
        self._squared = {}

    def facts(self) -> WeightPenaltyFacts | None:
        """None where no loss has squares of weights."""
        return self._facts if self._facts.passes else None

    def _note(self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        del operator, kwargs, result
        if args and id(args[0]) in self._squared:
            self._facts.function = self._facts.function or users_function(sys._getframe(2))


def _squared_weights(roots: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Each once; of those with more than one element, whose squares are reduced to one number."""
    readers = consumers(root.grad_fn for root in roots)
    found: dict[int, torch.Tensor] = {}
    for node in readers:
        weight = _squared_leaf(node)
        if weight is None and node.name().startswith(_NORMS):
            (weight,) = leaves if len(leaves := _leaves(node)) == 1 else (None,)
            reduced = any(_is_square(reader) for reader in readers[node])
        else:
            reduced = any(reader.name().startswith(_REDUCTIONS) and not shape_of(reader) for reader in readers[node])
        if weight is not None and reduced and weight.numel() > 1:
            found[id(weight)] = weight
    return list(found.values())


def _squared_leaf(node: Any) -> torch.Tensor | None:
    leaves = _leaves(node)
    if _is_square(node) and len(leaves) == 1:
        return leaves[0]
    if node.name().startswith(_PRODUCT) and len(leaves) == len(node.next_functions) and leaves[0] is leaves[-1]:
        return leaves[0]
    return None


def _is_square(node: Any) -> bool:
    if not node.name().startswith(_POWER):
        return False
    exponent = getattr(node, "_saved_exponent", None)
    return (signed(exponent) if isinstance(exponent, int) else exponent) == 2


def _leaves(node: Any) -> list[torch.Tensor]:
    """The weights that it computes on."""
    following = [each for each, _ in node.next_functions if each is not None]
    return [each.variable for each in following if each.name() == _LEAF]
