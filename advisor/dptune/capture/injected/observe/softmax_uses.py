"""Follows the results of softmax through an autograd graph to the loss or matrix product that uses them.

Each dimension is followed by itself, through changes of layout, dropout, masks and constant factors. What divides the
result by its own sum, or multiplies it by anything that is trained, ends the search: it is no longer a softmax. Sums of
the result itself may divide the product later, so that its weights are then none of attention.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from dptune.capture.injected.observe.loss_graph import LOSSES, only_input, shape_of, signed
from dptune.capture.injected.observe.loss_masks import VIEWS
from dptune.runfile.softmax_dimensions import CROSS_ENTROPY, LOSS, WEIGHTS

_SOFTMAX = ("SoftmaxBackward", "SafeSoftmaxBackward")
_LOG_SOFTMAX = "LogSoftmaxBackward"
_LOG = "LogBackward"
_PRODUCTS = ("BmmBackward", "MmBackward")
_LEAF = "torch::autograd::AccumulateGrad"
_VALUES = ("CloneBackward", "ToCopyBackward", "AliasBackward", "NativeDropoutBackward", "_DDPSinkBackward")
_CONSTANT = ("MulBackward", "DivBackward", "MaskedFillBackward", "ClampBackward", "AddBackward", "WhereBackward")
_SUMS = ("SumBackward", "MeanBackward")
_TURNED = ("TransposeBackward", "TBackward", "PermuteBackward", "ExpandBackward")
_OF_SCORES = (
    "SubBackward",
    "NegBackward",
    "TanhBackward",
    "SliceBackward",
    "IndexBackward",
)  # biases, limits, positions
_HOPS = 16  # between scores, softmax and use
_CLASSES = 1  # the dimension of classes in what nll_loss is given
_CTC = "CtcLossBackward"  # which is given classes last

Dims = tuple[int | None, ...]  # of a tensor: which dimension of the softmax each is


class Use(NamedTuple):
    """A loss or product that reads the result of a softmax along the dimension `along` of that result."""

    node: Any
    used_as: str
    along: int


def softmax_dim(node: Any) -> int | None:
    """The dimension over which a softmax normalizes, from 0; None for other functions and of a single dimension."""
    rank = len(shape_of(node))
    if rank < 2 or not node.name().startswith((*_SOFTMAX, _LOG_SOFTMAX)):
        return None
    return signed(node._saved_dim) % rank


def is_log(node: Any) -> bool:
    """Whether a softmax returns logarithms."""
    return bool(node.name().startswith(_LOG_SOFTMAX))


def uses(softmax: Any, readers: dict[Any, list[Any]]) -> list[Use]:
    """What uses the result, where the dimension is known along which it does."""
    found, is_summed = [], False
    rank = len(shape_of(softmax))
    dims: Dims = tuple(range(rank))
    waiting = deque([(softmax, dims, is_log(softmax), 0)])
    while waiting:
        node, dims, log, hops = waiting.popleft()
        for reader in readers.get(node, []):
            along, used_as = _along(reader, node, dims, log, readers)
            if along is not None:
                found.append(Use(reader, used_as, along))
            elif reader.name().startswith(_SUMS):
                is_summed = True
            elif hops < _HOPS and (moved := _moved(reader, node, dims)) is not None:
                waiting.append((reader, moved, log or reader.name().startswith(_LOG), hops + 1))
    return [use for use in found if use.used_as != WEIGHTS or not is_summed]


def are_scores(softmax: Any) -> bool:
    """Whether a softmax is given the product of two results of the model, scaled and masked: queries and keys.

    The product with a parameter is a layer, whose outputs may be assigned along any dimension.
    """
    kept = (*_VALUES, *_CONSTANT, *VIEWS, *_TURNED, *_OF_SCORES)
    waiting = deque([(softmax, 0)])
    while waiting:
        node, hops = waiting.popleft()
        inputs = [following for following, _ in node.next_functions if following is not None]
        if node.name().startswith((*_PRODUCTS, "BaddbmmBackward")):
            return sum(not _is_parameter(each) for each in inputs[-2:]) == 2
        if hops < _HOPS and (node is softmax or node.name().startswith(kept)):
            waiting += [(each, hops + 1) for each in inputs]
    return False


def of_softmax(node: Any) -> bool:
    """Whether a tensor is the result of a softmax, in whatever layout."""
    for _ in range(_HOPS):
        if node is None or node.name().startswith(_SOFTMAX):
            return node is not None
        if not node.name().startswith((*_VALUES, *_CONSTANT, *VIEWS, *_TURNED)):
            return False
        node = only_input(node)
    return False


def _along(reader: Any, node: Any, dims: Dims, log: bool, readers: dict[Any, list[Any]]) -> tuple[int | None, str]:
    """The dimension of the softmax along which a reader uses it, and as what; None if it does not, or is not known."""
    name = reader.name()
    if name.startswith(LOSSES):
        return (dims[_CLASSES] if len(dims) > _CLASSES else None), LOSS
    if name.startswith(_CTC):
        return dims[-1], LOSS
    if name.startswith(_LOG_SOFTMAX) and len(dims) == len(shape_of(reader)):
        is_loss = not log and any(use.used_as == LOSS for use in uses(reader, readers))
        return (dims[signed(reader._saved_dim) % len(dims)] if is_loss else None), CROSS_ENTROPY
    if name.startswith(_PRODUCTS) and not log and len(dims) >= 2:
        first, second = (following for following, _ in reader.next_functions[:2])
        other = second if first is node else first
        if other is not None and first is not second and not of_softmax(other):
            return dims[-1 if first is node else -2], WEIGHTS
    return None, LOSS


def _moved(reader: Any, node: Any, dims: Dims) -> Dims | None:
    """The dimensions of what a reader returns; None if its values are others, or it leaves some out."""
    name = reader.name()
    before, after = shape_of(node), shape_of(reader)
    if name.startswith((*_VALUES, _LOG)) or (name.startswith(_CONSTANT) and only_input(reader) is node):
        return dims if before == after else None
    if name.startswith(VIEWS):
        return _reshaped(before, after, dims)
    if name.startswith("ExpandBackward"):
        return (None,) * (len(after) - len(before)) + dims
    if name.startswith("TBackward") and len(dims) == 2:
        return dims[::-1]
    if name.startswith("TransposeBackward"):
        first, second = (signed(at) % len(dims) for at in (reader._saved_dim0, reader._saved_dim1))
        swapped = {first: second, second: first}
        return tuple(dims[swapped.get(at, at)] for at in range(len(dims)))
    if name.startswith("PermuteBackward"):
        return tuple(dims[signed(at) % len(dims)] for at in reader._saved_dims)
    return None


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], dims: Dims) -> Dims:
    """A dimension is kept where its size is, and the number of values before it."""
    kept, count = {}, 1
    for size, dim in zip(before, dims, strict=True):
        if size > 1:
            kept[count, size] = dim
        count *= size
    found, count = [], 1
    for size in after:
        found.append(kept.get((count, size)))
        count *= size
    return tuple(found)


def _is_parameter(node: Any) -> bool:
    """Whether a tensor is a parameter, in whatever layout or type."""
    for _ in range(_HOPS):
        if node is None or node.name() == _LEAF:
            return node is not None
        if not node.name().startswith((*_VALUES, *VIEWS, *_TURNED)):
            return False
        node = only_input(node)
    return False
