"""Finds losses that expect logits and are given probabilities, by the functions that a backward pass will run.

The same for `nll_loss`, which expects log-probabilities, and is given probabilities or the outputs of a layer.

In warm-up steps only: before a backward pass the part of its graph that is nearest to the loss is read. Where it shows
a fault, torch notes the lines of the next forward pass, as in its anomaly mode, but checks no values.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dptune.capture.injected.observe.divergences import Divergences
from dptune.capture.injected.observe.graph_passes import GraphPasses
from dptune.capture.injected.observe.loss_graph import consumers
from dptune.capture.injected.observe.node_lines import node_line
from dptune.capture.injected.observe.probability_kinds import APPLIED, LAYERS, RESHAPED, SAME, is_layout
from dptune.runfile.probability_losses import ProbabilityLossFacts

_NODES = 256  # of a graph, the nearest to the loss
_LAYOUT = 16  # operators between the loss and what it is given
_LOSSES = {
    "LogSoftmaxBackward0": "log_softmax",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy_with_logits",
    "LogSigmoidBackward0": "logsigmoid",
}
_OF_LOGARITHMS = ("NllLossBackward0", "NllLoss2DBackward0")
_NLL, _LAYER = "nll_loss", "layer"


class ProbabilityLosses(GraphPasses[ProbabilityLossFacts]):
    """Reads the graphs of the first backward passes. `divergences` sees the calls of `kl_div`."""

    def __init__(self) -> None:
        super().__init__()
        self.divergences = Divergences()

    def facts(self) -> list[ProbabilityLossFacts]:
        """What graphs and calls showed, a record for each kind."""
        return [*super().facts(), *self.divergences.facts()]

    def _read(self, roots: Any) -> None:
        for loss, applied, classes in set(_found(roots)):
            kinds = (APPLIED.get(applied.name(), _LAYER), _LOSSES.get(loss.name(), _NLL))
            known = self._found.setdefault((*kinds, classes), ProbabilityLossFacts(*kinds, classes=classes))
            known.passes += 1
            known.where = known.where or node_line(applied)
            known.loss_where = known.loss_where or node_line(loss)


def _found(roots: Any) -> Iterator[tuple[Any, Any, int | None]]:
    """Each function of a loss with what it is given by a softmax or sigmoid, and the number of classes."""
    tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    nodes = deque(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)
    seen = set(nodes)
    readers = functools.cache(lambda: consumers(tensor.grad_fn for tensor in tensors))
    for _ in range(_NODES):
        if not nodes:
            return
        node = nodes.popleft()
        if node.name() in _LOSSES:
            applied, classes = _given(node)
            if applied is not None:
                yield node, applied, classes
        elif node.name() in _OF_LOGARITHMS and (outputs := _not_logarithms(node, readers)) is not None:
            yield node, outputs, None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def _given(loss: Any) -> tuple[Any, int | None]:
    """The softmax or sigmoid that returns what a loss is given, in whatever layout; None for anything else.

    A softmax counts only where the loss takes its own over the same dimension, of the same size. The dimension is
    counted from the last one, and followed through changes of layout; of those that would not keep it nothing is said.
    """
    over_classes = loss.name() == "LogSoftmaxBackward0"
    dim = _from_last(loss._saved_dim, _rank(loss)) if over_classes else None
    classes = _shape(loss)[dim] if dim is not None else None
    node, at = loss.next_functions[0]
    for _ in range(_LAYOUT):
        if node is None:
            break
        if node.name() in APPLIED:
            return (node, classes) if _same_classes(node, dim, classes) else (None, None)
        dim = _followed(node, dim) if dim is not None else None
        if not is_layout(node.name()) or (over_classes and dim is None):
            break
        node, at = node.next_functions[at if node.name() == "_DDPSinkBackward" else 0]
    return None, None


def _not_logarithms(loss: Any, readers: Callable[[], dict[Any, list[Any]]]) -> Any | None:
    """The softmax, sigmoid or layer whose outputs `nll_loss` is given, in whatever layout; None for anything else.

    The outputs of a layer may be normalized elsewhere in the loss: they count only if nothing else reads them.
    """
    node, at = loss.next_functions[0]
    path = []
    for _ in range(_LAYOUT):
        if node is None:
            break
        path.append(node)
        if node.name() in APPLIED:
            return node
        if node.name() in LAYERS:
            return node if all(len(readers().get(each, ())) == 1 for each in path) else None
        if not is_layout(node.name()):
            break
        node, at = node.next_functions[at if node.name() == "_DDPSinkBackward" else 0]
    return None


def _same_classes(applied: Any, dim: int | None, classes: int | None) -> bool:
    if dim is None:
        return True
    shape = _shape(applied)
    if classes is None or classes < 2 or len(shape) < -dim or shape[dim] != classes:
        return False
    return applied.name() == "SigmoidBackward0" or _from_last(applied._saved_dim, len(shape)) == dim


def _followed(node: Any, dim: int) -> int | None:
    """The dimension of what a change of layout is given that becomes `dim` of what it returns; None if not known."""
    name = node.name()
    if name in SAME:
        return dim
    if name in RESHAPED:
        return dim if dim == -1 and not _selects_last(node) else None
    if name == "TBackward0":
        return {-1: -2, -2: -1}.get(dim)
    rank = _rank(node)
    if name == "TransposeBackward0":
        first, second = (_from_last(of_node, rank) for of_node in (node._saved_dim0, node._saved_dim1))
        return {first: second, second: first}.get(dim, dim)
    if name == "PermuteBackward0":
        return _from_last(node._saved_dims[rank + dim], rank)
    return None


def _selects_last(node: Any) -> bool:
    return node.name() == "SelectBackward0" and _from_last(node._saved_dim, _rank(node) + 1) == -1


def _shape(node: Any) -> Any:
    """Of what the function returned in the forward pass."""
    return node._input_metadata[0].shape


def _rank(node: Any) -> int:
    return len(_shape(node))


def _from_last(dim: int, rank: int) -> int:
    """A dimension counted from the last, which is -1; torch shows negative ones as unsigned numbers."""
    signed = dim - 2**64 if dim >= 2**63 else dim
    return signed if signed < 0 else signed - rank
