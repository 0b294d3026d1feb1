"""The targets of a cross entropy and the token ids that a model embeds, brought to the same positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dptune.capture.injected.observe.loss_graph import LOSSES, signed
from dptune.capture.injected.observe.loss_masks import readable

_SLICE = "SliceBackward"
_HOPS = 8  # from a loss to where its logits may be cut


def token_losses(nodes: Iterable[Any]) -> list[Any]:
    """The cross entropies whose targets can be read, and are at the positions of the first ids."""
    return [
        node
        for node in nodes
        if node.name().startswith(LOSSES) and readable(node, "target") and not _starts_later(node)
    ]


def embedded_ids(nodes: Iterable[Any]) -> list[tuple[Any, torch.Tensor]]:
    """Embeddings, each with its token ids in two dimensions: sequences and positions, or positions and sequences."""
    embeddings = [node for node in nodes if node.name().startswith("EmbeddingBackward") and readable(node, "indices")]
    saved = [(node, node._saved_indices) for node in embeddings]
    return [(node, ids) for node, ids in saved if type(ids) is torch.Tensor and ids.dim() == 2]


def target_rows(loss: Any, ids: torch.Tensor) -> torch.Tensor | None:
    """The targets of each row of ids, on the device of these.

    None where the targets are not one for each position, or for each but the last.
    """
    target = loss._saved_target
    rows, columns = ids.shape
    if type(target) is not torch.Tensor or target.numel() not in (rows * columns, rows * (columns - 1)):
        return None
    return target.reshape(rows, -1).to(ids.device)


def _starts_later(loss: Any) -> bool:
    """Whether the logits of the first positions are cut off, so that positions of targets and ids differ."""
    node = loss
    for _ in range(_HOPS):
        node = next((following for following, _ in node.next_functions if following is not None), None)
        if node is None:
            return False
        if node.name().startswith(_SLICE) and signed(node._saved_start) != 0:
            return True
    return False
