"""Floating-point operations (FLOPs) of one operator, from the sizes of its inputs.

Conventions of `torch.utils.flop_counter`: 2 FLOPs per multiply-add; only matrix products, convolutions and attention
count; causal masks are not subtracted; the backward pass of fused attention has five products, one of which recomputes
the scores. Two differences: the weight gradient of a grouped convolution counts what is multiplied, which
`flop_counter` overstates by the number of groups; and recurrent layers of cuDNN, MIOpen and oneDNN count, which it
leaves out.

Sizes come from `Input Dims`, and settings of convolutions from `Concrete Inputs`, in the order of the arguments in
torch's `native_functions.yaml`; flash-attn's own operators follow its `flash_attn_interface.py`, FBGEMM's its
`torch.ops.fbgemm`.

Sequences that are packed into one have their bounds in a tensor, of which a trace has the size only: how many there
are. If their number times the longest is all tokens, they are equally long; else attention computes at least as much
as if they were (the sum of squares of given sum is least for equal lengths).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dptune.measured import FlopKind

Shape = tuple[int, ...]
_WHOLE = frozenset({int})
_MOST_DIGITS = 20
_MOST = 10**18  # of one operator: a device computes for minutes; more is no size of a real tensor


class Flops(NamedTuple):
    """FLOPs of an operator; `recomputed` is the part that a forward pass computed before. `least`: may be more."""

    total: int
    recomputed: int = 0
    least: bool = False


class Arguments(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The arguments of an operator; an input that is not a tensor has no shape.

    A Struct, not a dataclass, which takes longer to make: of a large trace there are a hundred thousand.
    """

    shapes: Sequence[Shape | None]
    types: Sequence[str]
    values: Sequence[str]
    lists: Mapping[int, Sequence[Shape]] = msgspec.field(default_factory=dict)  # of inputs that are lists of tensors

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Arguments:
        """From the arguments of an event."""
        shapes, lists = shapes_of(arguments.get("Input Dims", arguments.get("Input dims")))
        return cls(shapes, texts_of(arguments.get("Input type")), texts_of(arguments.get("Concrete Inputs")), lists)

    def whole(self, at: int) -> int | None:
        """An input that is a whole number; None for anything else."""
        text = self.value(at)
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < _MOST_DIGITS else None

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


def _recurrent(weights: int | tuple[int, ...], *, backward: bool = False) -> Callable[[Arguments], Flops | None]:
    """FLOPs of recurrent layers: each matrix of weights multiplies every token, forward; twice that backward.

    `weights` are the inputs with them: one that is a list of tensors, or several.
    """

    def flops(arguments: Arguments) -> Flops | None:
        tokens = arguments.shape(0)
        if isinstance(weights, int):
            found: Sequence[Shape | None] = arguments.lists.get(weights, ())
        else:
            found = [arguments.shape(at) for at in weights]
        matrices = [shape for shape in found if shape is not None and len(shape) == 2]
        if tokens is None or not matrices or not 2 <= len(tokens) <= 3:
            return None
        once = 2 * math.prod(tokens[:-1]) * sum(map(math.prod, matrices))
        return Flops(2 * once if backward else once)

    return flops


class _Packed(NamedTuple):
    """Inputs that describe packed sequences: bounds of queries (those of keys follow), the longest, the window."""

    bounds: int
    longest: int
    window: int | None = None


def _attention(
    first: int, *, heads: int, backward: bool, packed: _Packed | None = None
) -> Callable[[Arguments], Flops | None]:
    """FLOPs of attention; queries, keys and values are the inputs from `first` on; dimension `heads` counts heads."""

    def flops(arguments: Arguments) -> Flops | None:
        query, key, value = (arguments.shape(at) for at in range(first, first + 3))
        if query is None or key is None or value is None or query[-1] != key[-1]:
            return None
        if packed is not None and arguments.shape(packed.bounds) is not None:
            pairs = _pairs(arguments, query, key, packed)
        else:
            pairs = _dense_pairs(query, key, value, heads)
        if pairs is None:
            return None
        scores = 2 * pairs.total
        if not backward:
            return Flops(scores * (query[-1] + value[-1]), least=pairs.least)
        return Flops(scores * (3 * query[-1] + 2 * value[-1]), scores * query[-1], pairs.least)

    return flops


class _Pairs(NamedTuple):
    """Pairs of a query and a key, over all heads; `least`: may be more."""

    total: int
    least: bool = False


def _dense_pairs(query: Shape, key: Shape, value: Shape, heads: int) -> _Pairs | None:
    if not len(query) == len(key) == len(value) == 4:
        return None
    rows = 3 - heads
    if query[0] != key[0] or key[rows] != value[rows]:
        return None
    return _Pairs(query[0] * query[heads] * query[rows] * key[rows])


def _pairs(arguments: Arguments, query: Shape, key: Shape, packed: _Packed) -> _Pairs | None:
    """Of packed sequences, tokens x heads x width: exact if all are as long as the longest."""
    bounds, others = arguments.shape(packed.bounds), arguments.shape(packed.bounds + 1)
    if len(query) == len(key) == 4 and query[0] == key[0] == 1:  # memory-efficient attention keeps a batch of one
        query, key = query[1:], key[1:]
    if bounds is None or bounds != others or len(bounds) != 1 or bounds[0] < 2 or not len(query) == len(key) == 3:
        return None
    window = None if packed.window is None else arguments.whole(packed.window)
    if window is not None and window >= 0:
        return None
    number = bounds[0] - 1
    queries, keys = arguments.whole(packed.longest), arguments.whole(packed.longest + 1)
    if queries is not None and keys is not None and (number * queries, number * keys) == (query[0], key[0]):
        return _Pairs(query[1] * query[0] * keys)
    if query[0] != key[0]:
        return None  # of other queries than keys the least is not known
    return _Pairs(query[1] * (query[0] ** 2 // number), least=True)


def _matrix(first: int) -> Formula:
    return Formula("matrix product", _product(first), first)


def _fused(first: int, *, heads: int = 1, packed: _Packed | None = None) -> Formula:
    """Attention, forward or, where the gradient comes first, backward."""
    return Formula("attention", _attention(first, heads=heads, backward=first > 0, packed=packed), first)


# Operators that multiply matrices, fused attention and recurrent layers. Convolutions are in `convolutions`.
FORMULAS: dict[str, Formula] = {
    "aten::mm": _matrix(0),
    "aten::bmm": _matrix(0),
    **dict.fromkeys(
        (
            *("aten::addmm", "aten::addmm_", "aten::_addmm_activation"),
            *("aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_"),
            "_C::cutlass_scaled_mm",  # vLLM: the output comes first
        ),
        _matrix(1),
    ),
    **dict.fromkeys(("aten::_scaled_mm", "aten::_scaled_mm_v2", "aten::_int_mm"), _matrix(0)),
    **dict.fromkeys(
        ("aten::linear", "aten::_weight_int8pack_mm", "fbgemm::f8f8bf16_rowwise"), Formula("matrix product", _linear)
    ),
    **dict.fromkeys(
        ("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2"),
        Formula("matrix product", _grouped),
    ),
    **{
        f"aten::_scaled_dot_product_{kernel}{ending}": _fused(first)
        for kernel in (
            *("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable"),
            "flash_attention_for_cpu",
        )
        for ending, first in (("", 0), ("_backward", 1))
    },
    "aten::_flash_attention_forward": _fused(0, heads=2, packed=_Packed(3, 5, window=11)),
    "aten::_flash_attention_backward": _fused(1, heads=2, packed=_Packed(6, 8, window=15)),
    "aten::_efficient_attention_forward": _fused(0, heads=2, packed=_Packed(4, 6)),
    "aten::_efficient_attention_backward": _fused(1, heads=2, packed=_Packed(6, 8)),
    "aten::_cudnn_attention_forward": _fused(0, packed=_Packed(4, 6)),
    "aten::_cudnn_attention_backward": _fused(1, packed=_Packed(9, 11)),
    "flash_attn::_flash_attn_forward": _fused(0, heads=2),
    "flash_attn::_flash_attn_backward": _fused(1, heads=2),
    "flash_attn::_flash_attn_varlen_forward": _fused(0, heads=2, packed=_Packed(3, 5, window=10)),
    "flash_attn::_flash_attn_varlen_backward": _fused(1, heads=2, packed=_Packed(9, 11, window=16)),
    "flash_attn_3::_flash_attn_forward": _fused(0, heads=2),
    "flash_attn_3::_flash_attn_backward": _fused(1, heads=2),
    **{
        f"aten::{library}_rnn{ending}": Formula("recurrent layer", _recurrent(1, backward=bool(ending)))
        for library in ("_cudnn", "miopen")
        for ending in ("", "_backward")
    },
    "aten::mkldnn_rnn_layer": Formula("recurrent layer", _recurrent((1, 2))),
    "aten::mkldnn_rnn_layer_backward": Formula("recurrent layer", _recurrent((1, 2), backward=True)),
}


def possible(flops: Flops | None) -> Flops | None:
    """The FLOPs, unless the sizes are no real tensor's."""
    return flops if flops is not None and 0 <= flops.total <= _MOST else None


def shapes_of(dims: Any) -> tuple[list[Shape | None], dict[int, list[Shape]]]:
    """The shape of each input, None for one that is no tensor; and of lists of tensors, those of each tensor."""
    shapes = [_shape(dim) for dim in dims] if isinstance(dims, list) else []
    lists = {
        at: [shape for shape in map(_shape, dim) if shape is not None]
        for at, dim in enumerate(dims if isinstance(dims, list) else [])
        if isinstance(dim, list) and any(isinstance(each, list) for each in dim)
    }
    return shapes, lists


def _shape(dim: Any) -> Shape | None:
    whole = isinstance(dim, list) and set(map(type, dim)) <= _WHOLE and min(dim, default=0) >= 0
    return tuple(dim) if whole else None


def texts_of(values: Any) -> list[str]:
    """Inputs as texts; empty for one that is none."""
    return [value if isinstance(value, str) else "" for value in values] if isinstance(values, list) else []
