"""Losses of single targets that a mask drops, from the node of the autograd graph that does.

A mask that is computed from the losses, to keep the highest or the lowest, does not make them needless: it is
recognized by a limit between the losses that it keeps and those that it drops.
"""

from __future__ import annotations

from typing import Any

import torch

VIEWS = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward")
_UNKNOWN = object()  # in place of a hook that this torch does not show
_HOPS = 4  # views between the loss and the mask


def readable(node: Any, name: str) -> bool:
    """Whether a saved tensor can be read without running a hook, as that of a checkpoint, which computes again."""
    saved = getattr(node, f"_raw_saved_{name}", None)
    return getattr(saved, "unpack_hook", _UNKNOWN) is None


def masked(loss: Any, ignored: torch.Tensor, consumers: dict[Any, list[Any]]) -> torch.Tensor:
    """Which losses are dropped, beside those of ignored targets; none where one number is made of them all."""
    dropped = _dropped(loss, consumers)
    if dropped is None or dropped.numel() != ignored.numel():
        return torch.zeros_like(ignored)
    dropped = dropped.reshape(-1).to(ignored.device)
    return dropped & ~_is_by_size(loss, dropped, ignored)


def _dropped(loss: Any, consumers: dict[Any, list[Any]]) -> torch.Tensor | None:
    node, below = loss, loss
    for _ in range(_HOPS):
        readers = consumers.get(node, [])
        if len(readers) != 1:
            return None
        node, below = readers[0], node
        if not node.name().startswith(VIEWS):
            break
    name = node.name()
    if name.startswith("MulBackward0"):
        side = "other" if node.next_functions[0][0] is below else "self"
        factor = saved_tensor(node, side)
        return None if factor is None else factor == 0
    if name.startswith("MaskedFillBackward"):
        return saved_tensor(node, "mask")
    if name.startswith("MaskedSelectBackward"):
        return _inverse(saved_tensor(node, "mask"))
    if name.startswith("WhereBackward"):
        condition = saved_tensor(node, "condition")
        return _inverse(condition) if node.next_functions[0][0] is below else condition
    if name.startswith("IndexBackward"):
        raw = node._raw_saved_indices
        if len(raw) == 1 and getattr(raw[0], "unpack_hook", _UNKNOWN) is None:
            index = node._saved_indices[0]
            return _inverse(index) if index is not None and index.dtype == torch.bool else None
    return None


def saved_tensor(node: Any, name: str) -> torch.Tensor | None:
    """What a function saved under a name; None if it is no plain tensor, or if reading it would run a hook."""
    value = getattr(node, f"_saved_{name}") if readable(node, name) else None
    return value.detach() if type(value) is torch.Tensor else None


def _inverse(mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None else ~mask.bool()


def _is_by_size(loss: Any, dropped: torch.Tensor, ignored: torch.Tensor) -> torch.Tensor:
    """Whether a limit separates the losses that are kept from those that are dropped."""
    scores = saved_tensor(loss, "self")
    if scores is None:
        return torch.ones((), dtype=torch.bool, device=dropped.device)
    targets = loss._saved_target.clamp(min=0).unsqueeze(1)
    losses = -scores.gather(1, targets).reshape(-1).float()
    kept, away = ~dropped & ~ignored, dropped & ~ignored
    ends = []
    for chosen in (kept, away):
        ends.append(torch.where(chosen, losses, float("inf")).min())
        ends.append(torch.where(chosen, losses, float("-inf")).max())
    least_kept, most_kept, least_dropped, most_dropped = ends
    return (most_dropped <= least_kept) | (most_kept <= least_dropped)
