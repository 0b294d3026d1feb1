"""What a call of a module was given or returned: enough of each tensor to tell whether two calls agree.

A large tensor is compared by values spread over it. Small tensors may agree by chance, as observations of a simple
environment do: they must also lie in the same memory, and are kept alive until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_COMPARED = 4096  # values of a tensor, about
_SMALL = 1024  # elements of a tensor that may agree with another by chance
_LEAVES = 64  # of nested arguments


@dataclass
class Tensor:
    """One tensor: its form and memory at the time of the call, and some of its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    strides: tuple[int, ...]
    memory: tuple[int, int, int, int]  # its address, that of its storage and the size of it, and its version
    values: torch.Tensor
    kept: torch.Tensor | None  # a small one, so that its memory is not used again

    def key(self, *, placed: bool) -> tuple[Any, ...]:
        """Equal for equal contents; `placed`: small tensors must also be in the same memory."""
        raw = self.values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        at = self.memory if placed and self.kept is not None else ()
        return (self.shape, self.dtype, self.requires_grad if placed else False, at, raw)


@dataclass
class Contents:
    """All tensors of arguments or results, in order, and what else there is."""

    tensors: list[Tensor]
    others: tuple[Any, ...]

    def key(self, *, placed: bool = False) -> tuple[Any, ...]:
        """Equal for equal contents."""
        return (self.others, *(tensor.key(placed=placed) for tensor in self.tensors))


def contents(*parts: Any) -> Contents | None:
    """None without a tensor, with a kind of tensor whose values cannot be read, or with too many parts."""
    tensors, others = [], []
    for count, leaf in enumerate(_leaves(parts)):
        if count >= _LEAVES:
            return None
        if not isinstance(leaf, torch.Tensor):
            others.append(leaf if leaf is None or isinstance(leaf, (bool, int, float, str)) else id(leaf))
        elif type(leaf) not in (torch.Tensor, torch.nn.Parameter) or leaf.layout is not torch.strided or leaf.is_meta:
            return None
        else:
            tensors.append(_tensor(leaf))
    return Contents(tensors, tuple(others)) if tensors else None


def tensors_in(thing: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and mappings."""
    yield from (leaf for leaf in _leaves(thing) if isinstance(leaf, torch.Tensor))


def _leaves(thing: Any) -> Iterator[Any]:
    if isinstance(thing, Mapping):
        for name, part in thing.items():
            yield str(name)
            yield from _leaves(part)
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from _leaves(part)
    else:
        yield thing


def _tensor(tensor: torch.Tensor) -> Tensor:
    plain = tensor.detach()
    storage = plain.untyped_storage()
    most = max(1, int(_COMPARED ** (1 / max(1, plain.dim()))))
    values = plain[tuple(slice(None, None, -(-size // most) or 1) for size in plain.shape)].clone()
    return Tensor(
        tuple(plain.shape),
        plain.dtype,
        tensor.requires_grad,
        tuple(plain.stride()),
        (plain.data_ptr(), storage.data_ptr(), storage.nbytes(), tensor._version),
        values,
        plain if plain.numel() < _SMALL else None,
    )
