"""Floating-point operations (FLOPs) of one operator, from the sizes of its inputs.

Conventions of `torch.utils.flop_counter`: 2 FLOPs per multiply-add; only matrix products, convolutions and attention
count; causal masks are not subtracted; the backward pass of fused attention has five products, one of which recomputes
the scores. One difference: the weight gradient of a grouped convolution counts what is multiplied, which
`flop_counter` overstates by the number of groups.

Sizes come from `Input Dims`, and settings of convolutions from `Concrete Inputs`, in the order of the arguments in
torch's `native_functions.yaml`; flash-attn's own operators follow its `flash_attn_interface.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dptune.measured import FlopKind

Shape = tuple[int, ...]
_MOST = 10**18  # of one operator: a device computes for minutes; more is no size of a real tensor


class Flops(NamedTuple):
    """FLOPs of an operator; `recomputed` is the part that a forward pass computed before."""

    total: int
    recomputed: int = 0


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of an operator; an input that is not a tensor has no shape."""

    shapes: Sequence[Shape | None]
    types: Sequence[str]
    values: Sequence[str]

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Arguments:
        """From the arguments of an event."""
        dims = arguments.get("Input Dims", arguments.get("Input dims"))
        shapes = [_shape(dim) for dim in dims] if isinstance(dims, list) else []
        return cls(shapes, _texts(arguments.get("Input type")), _texts(arguments.get("Concrete Inputs")))

    @property
    def sized(self) -> bool:
        """Whether the trace has sizes."""
        return any(self.shapes)

    def shape(self, at: int) -> Shape | None:
        """The shape of an input; None for a scalar, and if it was not recorded."""
        return (self.shapes[at] or None) if at < len(self.shapes) else None

    def value(self, at: int) -> str:
        """An input that is not a tensor, as torch wrote it; empty if it was not recorded."""
        return self.values[at] if at < len(self.values) else ""


class Formula(NamedTuple):
    """How the FLOPs of an operator follow from its arguments, and which input has the compute type."""

    kind: FlopKind
    flops: Callable[[Arguments], Flops | None]
    typed_by: int = 0


def _product(first: int) -> Callable[[Arguments], Flops | None]:
    """FLOPs of the product of two consecutive inputs; batch dimensions come first."""

    def flops(arguments: Arguments) -> Flops | None:
        left, right = arguments.shape(first), arguments.shape(first + 1)
        if left is None or right is None or not 2 <= len(left) == len(right) <= 3:
            return None
        if left[:-2] != right[:-2] or left[-1] != right[-2]:
            return None
        return Flops(2 * math.prod(left) * right[-1])

    return flops


def _grouped(arguments: Arguments) -> Flops | None:
    """FLOPs of a grouped product, whose rows, columns or inner dimension are split into groups."""
    left, right = arguments.shape(0), arguments.shape(1)
    if left is None or right is None or not all(2 <= len(shape) <= 3 for shape in (left, right)):
        return None
    return Flops(2 * math.prod(left) * right[-1]) if left[-1] == right[-2] else None


def _linear(arguments: Arguments) -> Flops | None:
    inputs, weight = arguments.shape(0), arguments.shape(1)
    if inputs is None or weight is None or len(weight) != 2 or inputs[-1] != weight[1]:
        return None
    return Flops(2 * math.prod(inputs) * weight[0])


def _attention(first: int, *, heads: int, backward: bool, packed: int | None = None) -> Callable[..., Flops | None]:
    """FLOPs of attention; queries, keys and values are the inputs from `first` on; dimension `heads` counts heads.

    `packed` is the input with the bounds of packed sequences: if it is a tensor, the lengths are not in the trace.
    """

    def flops(arguments: Arguments) -> Flops | None:
        query, key, value = (arguments.shape(at) for at in range(first, first + 3))
        if query is None or key is None or value is None or not len(query) == len(key) == len(value) == 4:
            return None
        if packed is not None and arguments.shape(packed) is not None:
            return None
        rows = 3 - heads
        if query[0] != key[0] or key[rows] != value[rows] or query[3] != key[3]:
            return None
        scores = 2 * query[0] * query[heads] * query[rows] * key[rows]
        if not backward:
            return Flops(scores * (query[3] + value[3]))
        return Flops(scores * (3 * query[3] + 2 * value[3]), recomputed=scores * query[3])

    return flops


def _matrix(first: int) -> Formula:
    return Formula("matrix product", _product(first), first)


def _fused(first: int, *, heads: int = 1, packed: int | None = None) -> Formula:
    """Attention, forward or, where the gradient comes first, backward."""
    return Formula("attention", _attention(first, heads=heads, backward=first > 0, packed=packed), first)


# Operators that multiply matrices, and fused attention. Convolutions are in `convolutions`.
FORMULAS: dict[str, Formula] = {
    "aten::mm": _matrix(0),
    "aten::bmm": _matrix(0),
    "aten::addmm": _matrix(1),
    "aten::_addmm_activation": _matrix(1),
    "aten::baddbmm": _matrix(1),
    "aten::_scaled_mm": _matrix(0),
    "aten::_int_mm": _matrix(0),
    "aten::linear": Formula("matrix product", _linear),
    "aten::_grouped_mm": Formula("matrix product", _grouped),
    "aten::_scaled_grouped_mm": Formula("matrix product", _grouped),
    **{
        f"aten::_scaled_dot_product_{kernel}{ending}": _fused(first)
        for kernel in (
            *("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable"),
            "flash_attention_for_cpu",
        )
        for ending, first in (("", 0), ("_backward", 1))
    },
    "aten::_flash_attention_forward": _fused(0, heads=2, packed=3),
    "aten::_flash_attention_backward": _fused(1, heads=2, packed=6),
    "aten::_efficient_attention_forward": _fused(0, heads=2, packed=4),
    "aten::_efficient_attention_backward": _fused(1, heads=2, packed=6),
    "flash_attn::_flash_attn_forward": _fused(0, heads=2),
    "flash_attn::_flash_attn_backward": _fused(1, heads=2),
    "flash_attn_3::_flash_attn_forward": _fused(0, heads=2),
    "flash_attn_3::_flash_attn_backward": _fused(1, heads=2),
}


def possible(flops: Flops | None) -> Flops | None:
    """The FLOPs, unless the sizes are no real tensor's."""
    return flops if flops is not None and 0 <= flops.total <= _MOST else None


def _shape(dim: Any) -> Shape | None:
    whole = isinstance(dim, list) and all(type(length) is int and length >= 0 for length in dim)
    return tuple(dim) if whole else None


def _texts(values: Any) -> list[str]:
    return [value if isinstance(value, str) else "" for value in values] if isinstance(values, list) else []
