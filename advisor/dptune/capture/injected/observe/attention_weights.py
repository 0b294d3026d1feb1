"""The weights of attention in an autograd graph, of single sequences and queries.

Attention that is computed operator by operator has the result of its softmax. Of fused attention they are computed from
the tensors that it saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dptune.capture.injected.observe.loss_graph import shape_of, signed
from dptune.capture.injected.observe.loss_masks import readable, saved_tensor

FUSED = "ScaledDotProduct"
SOFTMAX = ("SoftmaxBackward", "SafeSoftmaxBackward")
_MASKS = ("attn_mask", "attn_bias")

Cell = tuple[int, ...]  # of the dimensions before queries and keys: a sequence and a head


@dataclass(frozen=True, eq=False)
class Fused:
    """`query` and `key` of (..., positions, width); `added` to scores of (..., queries, keys), None without a mask."""

    query: torch.Tensor
    key: torch.Tensor
    added: torch.Tensor | None
    causal: bool
    scale: float

    @property
    def lead(self) -> Cell:
        """How many sequences and heads there are."""
        return tuple(self.query.shape[:-2])

    @property
    def positions(self) -> tuple[int, int]:
        """How many queries and keys there are."""
        return self.query.shape[-2], self.key.shape[-2]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.query.device

    def weights(self, cell: Cell, queries: torch.Tensor) -> torch.Tensor:
        """Of (queries, keys)."""
        scores = self.query[cell][queries].float() @ self.key[cell].float().mT * self.scale
        if self.causal:
            later = torch.arange(scores.shape[1], device=scores.device) > queries[:, None]
            scores = scores.masked_fill(later, float("-inf"))
        if self.added is not None:
            scores = scores + self.added[cell][queries].float()
        return scores.softmax(-1)


@dataclass(frozen=True, eq=False)
class Written:
    """`result`: of the softmax over keys, (..., queries, keys)."""

    result: torch.Tensor

    @property
    def lead(self) -> Cell:
        """How many sequences and heads there are."""
        return tuple(self.result.shape[:-2])

    @property
    def positions(self) -> tuple[int, int]:
        """How many queries and keys there are."""
        return self.result.shape[-2], self.result.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.result.device

    def weights(self, cell: Cell, queries: torch.Tensor) -> torch.Tensor:
        """Of (queries, keys)."""
        return self.result[cell][queries].float()


def fused(node: Any) -> Fused | None:
    """None if reading what it saved would run a hook. torch makes numbers of a boolean mask before it saves it."""
    query, key = saved_tensor(node, "query"), saved_tensor(node, "key")
    masks = [name for name in _MASKS if hasattr(node, f"_raw_saved_{name}")]
    if query is None or key is None or not all(readable(node, name) for name in masks):
        return None
    mask = next((saved_tensor(node, name) for name in masks), None)
    added = None if mask is None else mask.expand(*query.shape[:-1], key.shape[-2])
    return Fused(query, key, added, bool(node._saved_is_causal), node._saved_scale or query.shape[-1] ** -0.5)


def written(node: Any) -> Written | None:
    """None if its softmax is over another dimension than keys, or if reading the result would run a hook."""
    size = shape_of(node)
    if len(size) < 2 or signed(node._saved_dim) not in (-1, len(size) - 1):
        return None
    result = saved_tensor(node, "result")
    return None if result is None else Written(result)
