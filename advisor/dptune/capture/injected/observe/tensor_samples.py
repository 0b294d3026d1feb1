"""A few values of tensors, taken and compared on their device: nothing waits for it until a result is read."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

_ELEMENTS = 64  # of a tensor
_ROWS = 8  # of each dimension but the last

Sample = tuple["weakref.ref[Any]", torch.Tensor]  # a tensor, and values it had


@torch.no_grad()
def elements(tensor: Any) -> torch.Tensor:
    """A copy of some of what this rank holds of it, evenly spread over its first dimension."""
    local = getattr(tensor, "_local_tensor", tensor).detach()
    if local.layout == torch.sparse_coo:
        local = local.coalesce().values()
    while local.dim() > 1:
        local = local[:: max(1, local.shape[0] // _ROWS)].flatten(0, 1) if local.shape[0] else local.flatten()
    return local.reshape(-1)[:: max(1, local.numel() // _ELEMENTS)][:_ELEMENTS].clone()  # type: ignore[no-any-return]


def is_readable(tensor: Any) -> bool:
    """Whether this rank holds any of its values."""
    local = getattr(tensor, "_local_tensor", tensor)
    if local.is_meta or local.layout != torch.strided:
        return bool(local.layout == torch.sparse_coo)
    return bool(local.numel() and local.untyped_storage().nbytes())  # FSDP frees storage


def samples(tensors: Iterable[Any]) -> list[Sample]:
    """Of those whose values can be read."""
    return [(weakref.ref(tensor), elements(tensor)) for tensor in tensors if is_readable(tensor)]


def alive(values: Iterable[Sample]) -> list[tuple[Any, torch.Tensor]]:
    """The tensors that still exist, each with the values it had."""
    return [(tensor, before) for ref, before in values if (tensor := ref()) is not None]


def differ(values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Whether any value differs, a tensor of one; NaN is equal to NaN."""
    if values.shape != others.shape or values.device != others.device:
        return torch.ones((), dtype=torch.bool, device=values.device)
    return ((values != others) & ~(values.isnan() & others.isnan())).any()


def changes(values: Iterable[Sample]) -> list[torch.Tensor]:
    """Of each tensor that still exists and can be read, whether it has other values now."""
    return [differ(elements(tensor), before) for tensor, before in alive(values) if is_readable(tensor)]
