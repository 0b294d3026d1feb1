"""Which operators compute along some dimensions of a tensor, so that the order of its values there matters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
# What returns the same values at other places, or some of them.
MOVING = frozenset(
    (
        *("transpose", "permute", "swapaxes", "movedim", "t", "get T", "get mT", "getitem", "select", "narrow"),
        *("split", "chunk", "unbind", "cat", "concat", "stack", "expand", "pad"),
    )
)
# What compares two tensors value by value.
COMPARING = frozenset(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
_LAST = frozenset(("linear", "layer_norm", "rms_norm"))
_LAST_TWO = frozenset(("matmul", "rmatmul", "mm", "bmm", "baddbmm", "addmm", "scaled_dot_product_attention"))
_NAMED = frozenset(("softmax", "log_softmax", "mean", "sum", "amax", "amin", "std", "var", "logsumexp"))
_ANY = frozenset(
    (
        *RECURRENT,
        *(f"conv{kind}{count}d" for kind in ("", "_transpose") for count in (1, 2, 3)),
        *(f"{kind}_pool{count}d" for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for count in (1, 2, 3)),
        *("einsum", "batch_norm", "group_norm", "instance_norm", "interpolate", "multi_head_attention_forward"),
        *("cross_entropy", "nll_loss"),
    )
)


def sets_order(operator: str) -> bool:
    """Whether its results are in an order of their own, whatever the tensor's values are in."""
    return operator in _LAST | _LAST_TWO | _NAMED | _ANY


def computes_along(operator: str, dimensions: Collection[int], tensor: torch.Tensor, args: Any, kwargs: Any) -> bool:
    """Whether an operator's results depend on the order of values in some, but not all, of these dimensions."""
    last = tensor.dim() - 1
    if operator in _LAST:
        return last in dimensions
    if operator in _LAST_TWO:
        return last in dimensions or last - 1 in dimensions
    if operator in _NAMED:
        named = kwargs.get("dim", args[1] if len(args) > 1 else None)
        along = {at % tensor.dim() for at in (named if isinstance(named, (tuple, list)) else [named]) if at is not None}
        return bool(along.intersection(dimensions)) and not along.issuperset(dimensions)
    return operator in _ANY
