"""Finds attention over token ids that attends to their padding.

In a few backward passes of the warm-up steps, from the autograd graph of the loss: rows of embedded ids end, or start,
with the same id, which is nowhere else, and all attention over them gives weight to these positions. Where it shows
such attention, torch notes the lines of the next forward pass, as in its anomaly mode, but checks no values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.attention_graph import Sequences, is_masked_later, score_factors, with_tokens
from dptune.capture.injected.observe.attention_weights import FUSED, Cell, Fused, Written, fused, written
from dptune.capture.injected.observe.graph_passes import WholeGraphs
from dptune.capture.injected.observe.loss_graph import constant_factor, shape_of, signed
from dptune.capture.injected.observe.loss_masks import masked, saved_tensor
from dptune.capture.injected.observe.node_lines import node_line
from dptune.capture.injected.observe.padded_rows import PaddedRows, padded_rows
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.token_targets import embedded_ids, token_losses
from dptune.runfile.padded_attention import CROSS, SELF, PaddedAttentionFacts

_LEAST_WEIGHT = 0.01  # on padding: a mask leaves none, and less changes little
_LEAST_PADDING = 0.1  # of the positions of the sequence with most
_LEAST_IDS = 4  # that differ, without the padding: segments and speakers are fewer
_ROWS, _QUERIES = 4, 64  # whose weights are read


@dataclass(frozen=True, eq=False)
class _Padded:
    """Embedded ids of `rows` sequences; `padding` of those with most of it, by number of the sequence."""

    embedding: Any
    rows: int
    columns: int
    filler: int
    left: bool
    padding: dict[int, torch.Tensor]


class _Layer(NamedTuple):
    """Attention to padded sequences, and the share of its weight that is on padding."""

    kind: str
    node: Any
    share: float


class PaddedAttention(WholeGraphs[PaddedAttentionFacts]):
    """A record for each embedding and kind of attention."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self._masked: set[tuple[str, int]] = set()  # in any pass
        self._lengths: dict[tuple[str, int], set[int]] = {}  # of sequences, in all passes

    def _read_graph(self, readers: dict[Any, list[Any]]) -> None:
        losses = token_losses(readers)
        for number, (embedding, ids) in enumerate(sorted(embedded_ids(readers), key=_by_call)):
            padded = _padded(embedding, ids, losses, readers)
            layers = [] if padded is None else list(_layers(padded, readers))
            for kind in (SELF, CROSS):
                of_kind = [layer for layer in layers if layer.kind == kind]
                if padded is not None and of_kind:
                    self._note((kind, number), padded, of_kind)
                    self._tell_apart((kind, number), padded, losses, readers)

    def _tell_apart(
        self, key: tuple[str, int], padded: _Padded, losses: list[Any], readers: dict[Any, list[Any]]
    ) -> None:
        """What shows that the filler is padding and no token: its name, the lengths of batches, masks of the script."""
        known = self._found.get(key)
        if known is not None:
            lengths = self._lengths.setdefault(key, set())
            lengths.add(padded.columns)
            known.certain |= known.padding_idx or len(lengths) > 1 or _is_marked(padded, losses, readers)

    def _note(self, key: tuple[str, int], padded: _Padded, layers: list[_Layer]) -> None:
        """Add a pass; one in which a layer does not attend to padding shows that the model is given a mask."""
        share = min(layer.share for layer in layers)
        if share < _LEAST_WEIGHT:
            self._masked.add(key)
            self._found.pop(key, None)
        if key in self._masked:
            return
        known = self._found.setdefault(key, PaddedAttentionFacts(kind=key[0]))
        known.passes += 1
        known.layers, known.weight_share = len(layers), share
        known.filler, known.padding_idx = padded.filler, signed(padded.embedding._saved_padding_idx) == padded.filler
        known.positions, known.left = padded.columns, padded.left
        known.padding_share = float(torch.stack(list(padded.padding.values())).float().mean())
        known.where = known.where or node_line(layers[0].node)


def _by_call(embedded: tuple[Any, torch.Tensor]) -> int:
    number: int = embedded[0]._sequence_nr()
    return number


def _padded(embedding: Any, ids: torch.Tensor, losses: list[Any], readers: dict[Any, list[Any]]) -> _Padded | None:
    """None of ids without padding, or whose padding is among the targets of a loss. Either dimension may be rows."""
    ids = ids.cpu()
    for rows in (ids, ids.mT):
        found = padded_rows(rows, ())
        if found is None or not _are_tokens(rows, found):
            continue
        named = signed(embedding._saved_padding_idx) == found.filler
        if not named and any(_counts_padding(loss, found, readers) for loss in losses):
            continue
        chosen = found.lengths.argsort()[:_ROWS].tolist()
        if found.lengths[chosen[0]] > (1 - _LEAST_PADDING) * found.columns:
            continue
        padding = {row: found.padding[row] for row in chosen if found.lengths[row] < found.columns}
        padded = _Padded(embedding, len(rows), found.columns, found.filler, found.left, padding)
        return None if any(_chooses_padding(node, padded) for node in readers) else padded
    return None


def _chosen(node: Any, padded: _Padded) -> torch.Tensor | None:
    """By sequence and position, whether a boolean index of the script takes it; None of other nodes."""
    raw: tuple[Any, ...] = node._raw_saved_indices if node.name().startswith("IndexBackward") else ()
    if len(raw) != 1 or getattr(raw[0], "unpack_hook", True) is not None:
        return None
    index = node._saved_indices[0]
    size = padded.rows, padded.columns
    if index is None or index.dtype != torch.bool or tuple(index.shape) not in (size, size[::-1]):
        return None
    found: torch.Tensor = index.cpu()
    return found if found.shape[0] == padded.rows else found.mT


def _chooses_padding(node: Any, padded: _Padded) -> bool:
    """Whether the script takes the results at the positions by an index: then they are no padding."""
    chosen = _chosen(node, padded)
    return chosen is not None and all(bool(chosen[row][padding].any()) for row, padding in padded.padding.items())


def _is_marked(padded: _Padded, losses: list[Any], readers: dict[Any, list[Any]]) -> bool:
    """Whether the script itself tells the padding from the rest: it ignores targets there, or leaves results out."""
    masks = [
        loss._saved_target != signed(loss._saved_ignore_index)
        for loss in losses
        if type(loss._saved_target) is torch.Tensor
    ]
    for node in readers:
        if (chosen := _chosen(node, padded)) is not None:
            masks.append(chosen)
        elif node.name().startswith("MulBackward") and (factor := constant_factor(node)) is not None:
            masks.append(factor != 0)
        elif node.name().startswith("MaskedFillBackward") and (mask := saved_tensor(node, "mask")) is not None:
            masks.append(~mask)
    return any(_leaves_out(mask.cpu(), padded) for mask in masks)


def _leaves_out(mask: torch.Tensor, padded: _Padded) -> bool:
    """Whether a mask keeps some positions of each sequence, and none of its padding; in either order of dimensions."""
    inner = {row: each[:-1] & each[1:] for row, each in padded.padding.items()}
    for columns in (padded.columns, padded.columns - 1):
        if mask.numel() != padded.rows * columns:
            continue
        for kept in (mask.reshape(padded.rows, columns), mask.reshape(columns, padded.rows).mT):
            keeps = [bool(kept[row][: padded.columns - 1][each].any()) for row, each in inner.items()]
            if not any(keeps) and all(bool(kept[row].any()) for row in inner):
                return True
    return False


def _are_tokens(rows: torch.Tensor, padded: PaddedRows) -> bool:
    """Whether the rows differ in length, have ids of many values, and are not sorted: then the end is no padding."""
    ids = rows[~padded.padding].sort().values
    if int((ids.diff() != 0).sum()) < _LEAST_IDS - 1 or bool((padded.lengths == padded.lengths[0]).all()):
        return False
    steps = rows.diff(dim=1)
    return bool((steps < 0).any(1).logical_and((steps > 0).any(1)).any())


def _counts_padding(loss: Any, padded: PaddedRows, readers: dict[Any, list[Any]]) -> bool:
    """Whether targets at the positions of padding count, in either order of rows and positions.

    Only of padding that padding follows: the last one before a text may predict the first token of the text.
    """
    target, rows = loss._saved_target, len(padded.lengths)
    if type(target) is not torch.Tensor or target.numel() not in (rows * padded.columns, rows * (padded.columns - 1)):
        return False
    ignored = (target == signed(loss._saved_ignore_index)).reshape(-1)
    counted = ~(ignored | masked(loss, ignored, readers)).cpu()
    orders = counted.reshape(rows, -1), counted.reshape(-1, rows).mT
    inner = padded.padding[:, :-1] & padded.padding[:, 1:]
    return all(bool((order[:, : padded.columns - 1] & inner).any()) for order in orders)


def _layers(padded: _Padded, readers: dict[Any, list[Any]]) -> Iterator[_Layer]:
    """The nearest to the loss first; nothing of those whose weights cannot be known."""
    by_length = _joined(padded, readers)
    of_tokens = with_tokens(Sequences(padded.embedding, padded.rows, tuple(by_length)), readers)
    for node in readers:
        kind = _kind(node, of_tokens)
        attention = None if kind is None else fused(node) if node.name().startswith(FUSED) else written(node)
        if kind is None or attention is None or attention.positions[1] not in by_length:
            continue
        if kind == SELF and attention.positions[0] not in by_length:
            continue  # another order of dimensions
        attended = by_length[attention.positions[1]]
        asking = by_length[attention.positions[0]] if kind == SELF else None
        orders = list(_orders(attention.lead, attended))
        if isinstance(attention, Written) and is_masked_later(
            node, readers, partial(_hides, attention, orders, attended)
        ):
            yield _Layer(kind, node, 0.0)
        elif orders:
            yield _Layer(kind, node, min(_share(attention, cells, attended, asking) for cells in orders))


def _joined(padded: _Padded, readers: dict[Any, list[Any]]) -> dict[int, _Padded]:
    """By length: the sequences themselves, and those with other positions before or after, as of an image."""
    found = {padded.columns: padded}
    of_tokens = with_tokens(Sequences(padded.embedding, padded.rows, (padded.columns,)), readers)
    for node in readers:
        parts = [following for following, _ in node.next_functions] if node.name().startswith("CatBackward") else []
        at = [number for number, part in enumerate(parts) if part in of_tokens]
        if len(at) != 1:
            continue
        size = shape_of(node)
        dim = signed(node._saved_dim) % len(size)
        sizes: list[Any] = [
            following._input_metadata[output].shape[dim] if following is not None else None
            for following, output in node.next_functions
        ]
        if sizes.count(None) == 1:
            sizes[sizes.index(None)] = size[dim] - sum(each for each in sizes if each is not None)
        if None in sizes or sizes[at[0]] != padded.columns or size[dim] in found:
            continue
        around = (sum(sizes[: at[0]]), sum(sizes[at[0] + 1 :]))
        padding = {row: torch.nn.functional.pad(each, around, value=False) for row, each in padded.padding.items()}
        found[size[dim]] = replace(padded, columns=size[dim], padding=padding)
    return found


def _kind(node: Any, of_tokens: set[Any]) -> str | None:
    """None of what is no attention over the tokens."""
    for queries, keys in score_factors(node):
        if keys in of_tokens:
            return SELF if queries in of_tokens else CROSS
    return None


def _orders(lead: Cell, padded: _Padded) -> Iterator[list[Cell]]:
    """For each way in which sequences may be laid out, the first head of each padded one."""
    if len(lead) == 1:
        heads, rest = divmod(lead[0], padded.rows)
        if not rest:
            yield [(row * heads,) for row in padded.padding]
            yield [(row,) for row in padded.padding]
        return
    for at, size in enumerate(lead):
        if size == padded.rows:
            yield [(*[0] * at, row, *[0] * (len(lead) - at - 1)) for row in padded.padding]


def _share(attention: Fused | Written, cells: list[Cell], padded: _Padded, asking: _Padded | None) -> float:
    """Of the weight, that on padding: in self-attention of the other positions, else of all queries."""
    shares = []
    for cell, (row, padding) in zip(cells, padded.padding.items(), strict=True):
        everyone = torch.arange(attention.positions[0])
        queries = everyone if asking is None else everyone[~asking.padding[row]]
        weights = attention.weights(cell, queries[:: -(-len(queries) // _QUERIES)].to(attention.device))
        shares.append(weights.nan_to_num(0.0)[:, padding.to(attention.device)].sum(1).mean())
    return float(torch.stack(shares).mean())


def _hides(attention: Written, orders: list[list[Cell]], padded: _Padded, factor: torch.Tensor) -> bool:
    """Whether a factor of the weights is zero where the padding is."""
    size = attention.result.shape
    sizes = zip(reversed(factor.shape), reversed(size), strict=False)
    if factor.dim() > len(size) or any(each not in (1, most) for each, most in sizes):
        return False
    factor = factor.expand(size)
    paddings = list(padded.padding.values())
    return any(
        not any(bool(factor[cell][:, padding].any()) for cell, padding in zip(cells, paddings, strict=True))
        for cells in orders
    )
