"""Finds cross entropies in an autograd graph, each with the matrix product that computes its logits.

Only the nodes between the loss and the product are read: no operator of the script is replaced, and whatever calls the
loss is seen, but for code that torch.compile or an autograd function of its own hides.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dptune.capture.injected.observe.loss_masks import masked, readable, saved_tensor

LOSSES = ("NllLossBackward", "NllLoss2DBackward")
_LOG_SOFTMAX = "LogSoftmaxBackward"
_PRODUCTS = ("AddmmBackward", "MmBackward", "BmmBackward", "LinearBackward", "BaddbmmBackward", "MkldnnLinear")
_LEAF = "torch::autograd::AccumulateGrad"
_SMOOTHING = ("SumBackward", "NegBackward", "MaskedFillBackward")  # of label smoothing, which skips ignored targets
_NODES = 5_000  # that are looked at, those next to the loss first
_HOPS = 32  # from a loss to its product


@dataclass(frozen=True, eq=False)
class Loss:
    """Targets that count with a loss: `ignored` is true where they do not; `columns` of it are one sequence."""

    ignored: torch.Tensor
    columns: int | None
    base: int | None  # length of the sequences of the tensor that the targets are a part of


@dataclass(frozen=True, eq=False)
class Head:
    """The losses that read the logits of one matrix product, first call first, and nothing else reads them."""

    classes: int
    rows: int
    first: int  # orders heads by their calls
    losses: list[Loss]


def heads(roots: Iterable[Any]) -> list[Head]:
    """Of the graph above these nodes."""
    readers = consumers(roots)
    paths: dict[Any, list[list[Any]]] = defaultdict(list)
    for node in readers:
        if node.name().startswith(LOSSES) and (path := _to_product(node)):
            paths[path[-1]].append(path)
    found = []
    for product, of_product in paths.items():
        read = {node for path in of_product for node in path}
        shape = shape_of(product)
        classes = _classes(of_product[0])
        if shape and classes == shape[-1] and all(_reads_only(node, readers, read) for node in read):
            of_product.sort(key=lambda path: path[0]._sequence_nr())
            losses = [loss for path in of_product if (loss := _loss(path, classes, readers)) is not None]
            if len(losses) == len(of_product):
                found.append(Head(classes, _numel(shape) // classes, of_product[0][0]._sequence_nr(), losses))
    return found


def consumers(roots: Iterable[Any], most: int = _NODES) -> dict[Any, list[Any]]:
    """By node, what computes on its output; nodes stay alive as long as this does, so that they can be compared."""
    found: dict[Any, list[Any]] = {root: [] for root in roots if root is not None}
    waiting = deque(found)
    while waiting and len(found) < most:
        node = waiting.popleft()
        for following, _ in node.next_functions:
            if following is None or following.name() == _LEAF:
                continue
            if following not in found:
                found[following] = []
                waiting.append(following)
            found[following].append(node)
    return found


def below(node: Any, most: int) -> list[Any]:
    """A function and all that its result depends on, leaves included; empty if there are more than `most`."""
    found = {node: None}
    waiting = [node]
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in found:
                found[following] = None
                waiting.append(following)
        if len(found) > most:
            return []
    return list(found)


def only_input(node: Any) -> Any | None:
    """The one input with gradients; None if there are several."""
    inputs = [following for following, _ in node.next_functions if following is not None]
    return inputs[0] if len(inputs) == 1 else None


def constant_factor(node: Any) -> torch.Tensor | None:
    """The constant by which a product multiplies its only input with gradients."""
    if only_input(node) is None:
        return None
    name = "self" if node.next_functions[0][0] is None else "other"
    factor = saved_tensor(node, name)
    return factor if factor is not None and factor.numel() else None


def _to_product(loss: Any) -> list[Any] | None:
    """The nodes from a loss to the product, both included."""
    path, node = [loss], loss
    for _ in range(_HOPS):
        inputs = [following for following, _ in node.next_functions if following is not None]
        node = next((following for following in inputs if following.name() != _LEAF), None)
        if node is None:
            return None
        path.append(node)
        if node.name().startswith(_PRODUCTS):
            return path
    return None


def _reads_only(node: Any, consumers: dict[Any, list[Any]], read: set[Any]) -> bool:
    """Whether nothing beside these losses reads what a node between them and their product computes."""
    if node.name().startswith(LOSSES):
        return True
    return all(reader in read or _smooths(reader, consumers) for reader in consumers.get(node, []))


def _smooths(reader: Any, consumers: dict[Any, list[Any]]) -> bool:
    for name in _SMOOTHING:
        if reader is None or not reader.name().startswith(name):
            return False
        reader = next(iter(consumers.get(reader, [])), None)
    return True


def _classes(path: list[Any]) -> int:
    """By the dimension over which logits are normalised; 0 if they are not between the loss and the product."""
    for node in path:
        if node.name().startswith(_LOG_SOFTMAX):
            shape, dim = shape_of(node), signed(node._saved_dim)
            return shape[dim] if shape and -len(shape) <= dim < len(shape) else 0
    return 0


def _loss(path: list[Any], classes: int, consumers: dict[Any, list[Any]]) -> Loss | None:
    """None where reading the targets would run a hook of the script, as under checkpointing, or may do so."""
    loss = path[0]
    if not readable(loss, "target"):
        return None
    target, base = loss._saved_target, loss._saved_target._base
    if type(target) is not torch.Tensor:
        return None
    columns = None
    if target.dim() > 1:
        columns = target.shape[-1]
    else:
        for node in path[1:-1]:
            shape = shape_of(node)
            if len(shape) > 2 and shape[-1] == classes and _numel(shape) == target.numel() * classes:
                columns = shape[-2]
                break
    whole = base.shape[-1] if base is not None and base.dim() > 1 else None
    ignored = (target == signed(loss._saved_ignore_index)).reshape(-1)
    return Loss(ignored | masked(loss, ignored, consumers), columns, whole)


def shape_of(node: Any) -> tuple[int, ...]:
    """Of what a node's function returned in the forward pass."""
    metadata = node._input_metadata
    return tuple(int(length) for length in metadata[0].shape) if metadata else ()


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def signed(number: int) -> int:
    """Nodes return saved integers without their sign."""
    return number - 2**64 if number >= 2**63 else number
