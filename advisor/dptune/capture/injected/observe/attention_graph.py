"""Finds self-attention over a sequence of tokens in an autograd graph, and what it attends to.

Fused attention has its mask and its flag among the saved tensors. Attention that is computed operator by operator has
the result of its softmax, whatever made the scores. Only positions that reach the loss by themselves are followed: what
has no dimension of positions any more, as a mean over them, ends the search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.loss_graph import constant_factor, shape_of, signed
from dptune.capture.injected.observe.loss_masks import readable, saved_tensor

_FUSED = "ScaledDotProduct"
_SOFTMAX = ("SoftmaxBackward", "SafeSoftmaxBackward")
_PRODUCTS = ("BmmBackward", "BaddbmmBackward", "MmBackward")
_DROPPED = ("MaskedFillBackward", "WhereBackward", "TrilBackward", "TriuBackward")  # weights, after the softmax
_HOPS = 16  # between scores and their softmax, or weights and their product
_HIDDEN = -10.0  # of a mask that is added to scores: weights are e^10 times less
_LEAST_WEIGHT = 1e-6
_SEQUENCES, _QUERIES = 4, 64  # whose weights are added


class Attention(NamedTuple):
    """`sees_next`: by sequence (or for all) and position, whether any head attends to the next position."""

    node: Any
    sees_next: torch.Tensor
    later_share: float  # of the weight


class Sequences(NamedTuple):
    """The embedding of token ids, how many sequences it has, and how many positions they may have later on."""

    embedding: Any
    rows: int
    lengths: Sequence[int]


def self_attentions(loss: Any, sequences: Sequences) -> Iterator[Attention]:
    """The nearest to the loss first; nothing of those whose weights cannot be known."""
    readers = _with_positions(loss, sequences)
    of_tokens = _above(sequences.embedding, readers)
    for node in readers:
        size = shape_of(node)
        if len(size) < 2 or size[-2] not in sequences.lengths:
            continue
        if node.name().startswith(_FUSED):
            if of_tokens.issuperset(following for following, _ in node.next_functions[:2]):
                yield from _fused(node, size[-2], sequences.rows)
        elif node.name().startswith(_SOFTMAX) and size[-1] == size[-2]:
            over_keys = signed(node._saved_dim) in (-1, len(size) - 1)
            if over_keys and _is_of_product(node, of_tokens) and not _is_masked_later(node, readers, size[-1]):
                yield from _written(node, sequences.rows)


def _with_positions(loss: Any, sequences: Sequences) -> dict[Any, list[Any]]:
    """The functions below a loss whose results have positions, each with those that read it."""
    readers: dict[Any, list[Any]] = {}
    waiting = deque([loss])
    while waiting:
        node = waiting.popleft()
        for following, _ in node.next_functions:
            if following is None or not _has_positions(following, sequences):
                continue
            if following not in readers:
                readers[following] = []
                waiting.append(following)
            readers[following].append(node)
    return readers


def _has_positions(node: Any, sequences: Sequences) -> bool:
    """A function of the script may not say what it returns."""
    sizes = [tuple(each.shape) for each in getattr(node, "_input_metadata", ())]
    return not sizes or any(
        _is_by_position(size, sequences.rows, length) for size in sizes for length in sequences.lengths
    )


def _is_by_position(size: tuple[int, ...], rows: int, length: int) -> bool:
    """Whether a tensor has several values for each position of each sequence, in one dimension or in two."""
    if torch.Size(size).numel() <= rows * length:
        return False
    if size[0] % (rows * length) == 0:
        return True
    others = list(size)
    if length in others:
        others.remove(length)
    return 1 < len(others) < len(size) and any(each % rows == 0 for each in others)


def _above(embedding: Any, readers: dict[Any, list[Any]]) -> set[Any]:
    """All that depends on an embedding."""
    found, waiting = {embedding}, [embedding]
    while waiting:
        for reader in readers.get(waiting.pop(), []):
            if reader not in found:
                found.add(reader)
                waiting.append(reader)
    return found


def _fused(node: Any, length: int, rows: int) -> Iterator[Attention]:
    if node._saved_is_causal:
        yield Attention(node, torch.zeros(1, length - 1, dtype=torch.bool), 0.0)
        return
    query, key = saved_tensor(node, "query"), saved_tensor(node, "key")
    masks = [name for name in ("attn_mask", "attn_bias") if hasattr(node, f"_raw_saved_{name}")]
    if query is None or key is None or key.shape[-2] != length or not all(readable(node, name) for name in masks):
        return
    mask = next((saved_tensor(node, name) for name in masks), None)
    queries = torch.arange(0, length, -(-length // _QUERIES), device=query.device)
    scores = query[:1, :1, queries].float() @ key[:1, :1].float().mT * (node._saved_scale or query.shape[-1] ** -0.5)
    if mask is None:
        sees_next = torch.ones(1, length - 1, dtype=torch.bool)
    else:
        added = torch.where(mask, 0.0, float("-inf")) if mask.dtype is torch.bool else mask
        added = added.expand(*query.shape[:-1], length)
        scores = scores + added[:1, :1, queries].float()
        sees_next = _of_next(added, rows) > _HIDDEN
    yield Attention(node, sees_next, _later_share(scores.softmax(-1), queries))


def _written(node: Any, rows: int) -> Iterator[Attention]:
    weights = saved_tensor(node, "result")
    if weights is None:
        return
    length = weights.shape[-1]
    queries = torch.arange(0, length, -(-length // _QUERIES), device=weights.device)
    some = weights.reshape(-1, length, length)[:_SEQUENCES, queries].float()
    yield Attention(node, _of_next(weights, rows) > _LEAST_WEIGHT, _later_share(some, queries))


def _of_next(matrix: torch.Tensor, rows: int) -> torch.Tensor:
    """Of each position, the largest value for the next one, over heads; over sequences, too, if they are not known."""
    values = matrix.diagonal(1, -2, -1)
    values = values.reshape(-1, values.shape[-1])
    return values.reshape(rows if len(values) % rows == 0 else 1, -1, values.shape[-1]).amax(1)


def _later_share(weights: torch.Tensor, queries: torch.Tensor) -> float:
    later = torch.arange(weights.shape[-1], device=weights.device) > queries[:, None]
    weights = weights.nan_to_num(0.0)  # of queries that attend to nothing
    return float((weights * later).sum() / weights.sum().clamp(min=_LEAST_WEIGHT))


def _is_of_product(softmax: Any, of_tokens: set[Any]) -> bool:
    """Whether its scores are a product of two tensors, both of which depend on the tokens."""
    waiting, seen = [(softmax, 0)], set()
    while waiting:
        node, hops = waiting.pop()
        inputs = [following for following, _ in node.next_functions]
        if node.name().startswith(_PRODUCTS):
            if of_tokens.issuperset(inputs[-2:]):
                return True
            continue
        for following in inputs:
            if following is not None and following not in seen and hops < _HOPS:
                seen.add(following)
                waiting.append((following, hops + 1))
    return False


def _is_masked_later(softmax: Any, readers: dict[Any, list[Any]], length: int) -> bool:
    """Whether weights are set to zero after the softmax, other than at random."""
    waiting = [(reader, 0) for reader in readers[softmax]]
    while waiting:
        node, hops = waiting.pop()
        name = node.name()
        if name.startswith(_DROPPED) or (name.startswith("MulBackward") and _hides_next(node, length)):
            return True
        if not name.startswith(_PRODUCTS) and hops < _HOPS:
            waiting += [(reader, hops + 1) for reader in readers.get(node, [])]
    return False


def _hides_next(product: Any, length: int) -> bool:
    factor = constant_factor(product)
    if factor is None or factor.shape[-2:] != (length, length):
        return False
    return not bool(factor.diagonal(1, -2, -1).any())
