"""Finds losses whose predictions and targets broadcast against each other: (B, 1) and (B,) to (B, B).

In warm-up steps only. Before a backward pass, the part of its graph next to the loss is read: reductions, and the
elementwise functions before them, down to one whose result is larger than its predictions. A graph does not have the
shapes of its targets, so where it shows such a function, the operators that can have made it are wrapped until the
next backward pass.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from dptune.capture.injected.observe.loss_graph import consumers, shape_of
from dptune.capture.injected.observe.loss_masks import readable
from dptune.capture.injected.observe.places import Places, users_line
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators
from dptune.runfile.broadcast_losses import BroadcastLossFacts

_PASSES = 16  # that are read
_WATCHED = 4  # passes whose operators are watched
_NODES = 64  # of a graph, the nearest to the loss
_CHAIN = 32  # elementwise functions before a reduction
_REDUCTIONS = ("MeanBackward", "SumBackward")
_ELEMENTWISE = (
    *("PowBackward", "AbsBackward", "NegBackward", "SqrtBackward", "ClampBackward", "ToCopyBackward"),
    *("MulBackward", "DivBackward", "AddBackward", "SubBackward", "RsubBackward", "MinimumBackward", "MaximumBackward"),
)
_BROADCASTING = ("SubBackward", "MulBackward")
_LOSSES = ("MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward")  # given tensors that are expanded before
_EXPANDED = "ExpandBackward"  # also by the loss functions of torch
_MEANT = "UnsqueezeBackward"  # of predictions: they are to be compared with all targets
_LEAF = "torch::autograd::AccumulateGrad"
_OPERATORS: tuple[tuple[Any, str], ...] = (
    *((torch.Tensor, name) for name in ("__sub__", "sub", "__mul__", "mul")),
    *((torch, name) for name in ("sub", "mul")),
    *((functional, name) for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")),
)


_Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Call:
    operator: str
    where: str | None
    predictions: _Shape
    targets: _Shape


class BroadcastLosses:
    """Reads the graphs of the first backward passes."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._passes = self._watched = 0
        self._suspected: set[_Shape] = set()  # shapes of predictions
        self._calls: dict[int, _Call] = {}  # by the number of the function that the operator added to the graph
        self._operators = WrappedOperators(self._note)
        self._found: dict[_Call, BroadcastLossFacts] = {}

    def begin(self) -> None:
        """Read the backward passes from now on, but none of code that torch.compile hides."""
        self._watching = not self._places.compiled

    def before_pass(self, roots: Any) -> None:
        """A backward pass is about to start at these tensors."""
        if not self._watching:
            return
        self._watched += bool(self._operators)
        self._operators.unwrap()
        with contextlib.suppress(Exception):  # a graph may be anything
            if self._passes >= _PASSES:
                return
            self._passes += 1
            tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
            self._suspected = set()
            for node, predictions in set(_broadcasting(tensor.grad_fn for tensor in tensors)):
                self._suspected.add(predictions)
                call = self._calls.get(node._sequence_nr())
                if call is not None:
                    facts = self._found.setdefault(
                        call,
                        BroadcastLossFacts(call.operator, call.where, [*call.predictions], [*call.targets]),
                    )
                    facts.passes += 1
        self._calls = {}

    def after_pass(self) -> None:
        """It has ended."""
        if self._watching and self._suspected and self._watched < _WATCHED:
            for holder, name in _OPERATORS:
                self._operators.wrap(holder, name)

    def end(self) -> None:
        """Read no more."""
        self._watching = False
        self._operators.unwrap()
        self._suspected, self._calls = set(), {}

    def facts(self) -> list[BroadcastLossFacts]:
        """Of each line that has such an operator."""
        for facts in self._found.values():
            facts.passes_seen = self._watched
        return list(self._found.values())

    def _note(self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = [*args, *(kwargs[key] for key in ("input", "other", "target") if key in kwargs)][:2]
        if len(given) < 2 or not all(isinstance(tensor, torch.Tensor) for tensor in given):
            return
        predictions, targets = given if given[0].requires_grad else given[::-1]
        shape = tuple(predictions.shape)
        if shape not in self._suspected or targets.requires_grad or not _is_column(predictions, targets):
            return
        node = result.grad_fn
        if operator == "l1_loss":  # made of a difference
            node = next((inner for inner, _ in _broadcasting([node])), node)
        self._calls[node._sequence_nr()] = _Call(operator, users_line(sys._getframe(2)), shape, tuple(targets.shape))


def _is_column(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether they are (B, 1) and (B,), in either order."""
    few, many = sorted((tuple(first.shape), tuple(second.shape)), key=len)
    return many == (*few, 1)


def _broadcasting(roots: Iterable[Any]) -> Iterator[tuple[Any, _Shape]]:
    """Functions that are reduced to the loss at once and whose one input is smaller, with the shape of that input."""
    for node in consumers(roots, _NODES):
        if node.name().startswith(_LOSSES):
            yield from _smaller(node, None)
        elif node.name().startswith(_REDUCTIONS):
            yield from _before(node)


def _before(reduction: Any) -> Iterator[tuple[Any, _Shape]]:
    waiting = _inputs(reduction)
    whole = shape_of(waiting[0]) if waiting else ()
    for _ in range(_CHAIN):
        if not waiting:
            return
        node = waiting.pop()
        if shape_of(node) != whole or not node.name().startswith(_ELEMENTWISE) or _is_weighted_by_pair(node, whole):
            continue
        waiting += _inputs(node)
        if node.name().startswith(_BROADCASTING):
            yield from _smaller(node, whole)


def _smaller(node: Any, whole: _Shape | None) -> Iterator[tuple[Any, _Shape]]:
    """The function, if its only input with a gradient is (B,) or (B, 1) and expanded to (B, B)."""
    inputs = _inputs(node)
    if len(inputs) != 1:
        return
    (source,) = inputs
    if source.name().startswith(_EXPANDED):
        whole = shape_of(source)
        source = source.next_functions[0][0]
    if source is None or not whole or len(whole) != 2 or whole[0] != whole[1] or whole[0] < 2:
        return
    shape = shape_of(source)
    if shape in (whole[:1], (whole[0], 1)) and not source.name().startswith((_MEANT, _LEAF)):
        yield node, shape


def _inputs(node: Any) -> list[Any]:
    return [before for before, _ in node.next_functions if before is not None]


def _is_weighted_by_pair(node: Any, whole: _Shape) -> bool:
    """Whether it multiplies by a matrix without a gradient, such as a mask or a transport plan: pairs are meant."""
    if not node.name().startswith("MulBackward") or len(_inputs(node)) != 1:
        return False
    name = "self" if node.next_functions[0][0] is None else "other"
    factor = getattr(node, f"_saved_{name}") if readable(node, name) else None
    return factor is not None and tuple(factor.shape) == whole
