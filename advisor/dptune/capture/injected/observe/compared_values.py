"""Values of tensors that are kept, to be compared with those of a later call."""

from __future__ import annotations

from typing import Any

import torch

_COMPARED = 256  # values of a result, about


def largest_of(result: Any) -> torch.Tensor | None:
    """The result with most values, if it has plain tensors."""
    parts = result if isinstance(result, (tuple, list)) else (result,)
    tensors = [part for part in parts if type(part) is torch.Tensor and part.layout is torch.strided]
    return max(tensors, key=lambda tensor: tensor.numel(), default=None)


def some_values(tensor: torch.Tensor) -> torch.Tensor:
    """About `_COMPARED` values, evenly spaced in each dimension, as a copy."""
    plain = tensor.detach()
    most = max(1, int(_COMPARED ** (1 / max(1, plain.dim()))))
    with torch.no_grad():
        return plain[tuple(slice(None, None, -(-size // most) or 1) for size in plain.shape)].clone()


def some_inputs(args: Any) -> torch.Tensor:
    """Values of all tensors among the arguments: a fused optimizer changes weights and not their version."""
    tensors = [each for each in args if isinstance(each, torch.Tensor) and each.layout is torch.strided]
    return torch.cat([some_values(tensor).flatten().to("cpu", torch.float64) for tensor in tensors])


def agree(before: torch.Tensor | None, now: torch.Tensor) -> bool:
    """Whether both are known and equal."""
    return before is not None and before.shape == now.shape and bool(torch.equal(before.cpu(), now.cpu()))
