"""Finds self-attention over a sequence of tokens in an autograd graph, and what it attends to.

Fused attention has its mask and its flag among the saved tensors. Attention that is computed operator by operator has
the result of its softmax, whatever made the scores. Only positions that reach the loss by themselves are followed: what
has no dimension of positions any more, as a mean over them, ends the search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.attention_weights import FUSED, SOFTMAX, fused, written
from dptune.capture.injected.observe.loss_graph import constant_factor, shape_of

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
    of_tokens = with_tokens(sequences, readers)
    for node in readers:
        size = shape_of(node)
        if len(size) < 2 or size[-2] not in sequences.lengths:
            continue
        if not any(of_tokens.issuperset(factors) for factors in score_factors(node)):
            continue
        if node.name().startswith(FUSED):
            yield from _fused(node, size[-2], sequences.rows)
        elif size[-1] == size[-2] and not is_masked_later(node, readers, partial(_hides_next, length=size[-1])):
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
    if any(each % (rows * length) == 0 for each in size):
        return True
    others = list(size)
    if length in others:
        others.remove(length)
    return 1 < len(others) < len(size) and any(each % rows == 0 for each in others)


def with_tokens(sequences: Sequences, readers: dict[Any, list[Any]]) -> set[Any]:
    """All that depends on the embedded tokens, and has their positions."""
    found, waiting = {sequences.embedding}, [sequences.embedding]
    while waiting:
        for reader in readers.get(waiting.pop(), []):
            if reader not in found and _has_positions(reader, sequences):
                found.add(reader)
                waiting.append(reader)
    return found


def _fused(node: Any, length: int, rows: int) -> Iterator[Attention]:
    if node._saved_is_causal:
        yield Attention(node, torch.zeros(1, length - 1, dtype=torch.bool), 0.0)
        return
    attention = fused(node)
    if attention is None or attention.key.shape[-2] != length:
        return
    if attention.added is None:
        sees_next = torch.ones(1, length - 1, dtype=torch.bool)
    else:
        sees_next = _of_next(attention.added, rows) > _HIDDEN
    queries = torch.arange(0, length, -(-length // _QUERIES), device=attention.query.device)
    yield Attention(node, sees_next, _later_share(attention.weights((0,) * len(attention.lead), queries), queries))


def _written(node: Any, rows: int) -> Iterator[Attention]:
    attention = written(node)
    if attention is None:
        return
    weights, length = attention.result, attention.result.shape[-1]
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


def score_factors(node: Any) -> Iterator[list[Any]]:
    """What computes the queries and the keys whose product are the scores of fused attention, or of a softmax."""
    if node.name().startswith(FUSED):
        yield [following for following, _ in node.next_functions[:2]]
        return
    if not node.name().startswith(SOFTMAX):
        return
    waiting, seen = [(node, 0)], set()
    while waiting:
        node, hops = waiting.pop()
        inputs = [following for following, _ in node.next_functions]
        if node.name().startswith(_PRODUCTS):
            yield inputs[-2:]
            continue
        for following in inputs:
            if following is not None and following not in seen and hops < _HOPS:
                seen.add(following)
                waiting.append((following, hops + 1))


def is_masked_later(softmax: Any, readers: dict[Any, list[Any]], hides: Callable[[torch.Tensor], bool]) -> bool:
    """Whether weights are set to zero after the softmax, or multiplied by a constant that hides what it should."""
    waiting = [(reader, 0) for reader in readers[softmax]]
    while waiting:
        node, hops = waiting.pop()
        name = node.name()
        if name.startswith(_DROPPED):
            return True
        if name.startswith("MulBackward") and (factor := constant_factor(node)) is not None and hides(factor):
            return True
        if not name.startswith(_PRODUCTS) and hops < _HOPS:
            waiting += [(reader, hops + 1) for reader in readers.get(node, [])]
    return False


def _hides_next(factor: torch.Tensor, length: int) -> bool:
    return factor.shape[-2:] == (length, length) and not bool(factor.diagonal(1, -2, -1).any())
