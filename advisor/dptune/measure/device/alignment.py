"""Matrix products on tensor cores whose operands are not aligned to 16 bytes, and the lengths that are the cause.

cuBLAS and CUTLASS write into the name of a kernel how many elements it loads at once: `align8` of 16-bit numbers and
`align4` of TF32 are 16 bytes, `align1` and `align2` are less. Such a kernel is chosen where rows of an operand or of
the result do not start at multiples of 16 bytes: their length is no multiple of 8, or of 4 in TF32. The lengths are
those of the operator around the launch, where the trace has sizes. Strides show which dimension is contiguous;
without them each dimension of the product may be.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dptune.errors import TraceError
from dptune.measure.device.kernel_kinds import kernel_kind
from dptune.measure.device.phases import bounds
from dptune.measure.device.precisions import is_tensor_core
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.operator_arguments import operator_arguments
from dptune.measure.intervals import Intervals
from dptune.measure.views import RankView
from dptune.measured import UnalignedProduct
from dptune.trace.collective_kernels import MOST_CHARACTERS
from dptune.trace.kernels import KERNEL_CATEGORIES, OPERATOR_CATEGORIES

_UNALIGNED = re.compile(r"_align[abc]?[12](?!\d)")
_TYPES = (  # by the name of a kernel: the type of the operands, and the multiple that is 16 bytes
    (re.compile(r"bf16|bfloat16"), "bf16", 8),
    (re.compile(r"(?<![a-z0-9])f16(?![a-z0-9])|(?<![a-z0-9])h\d+gemm|half_t"), "fp16", 8),
    (re.compile(r"(?<![a-z0-9])s1688\w*gemm|tf32"), "tf32", 4),
)
_OPERANDS = {  # operator -> where its factors are among the inputs
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
}
_NO_LENGTH = 2**48  # no tensor has as many elements
_MOST_READ = 2_000  # operators whose sizes are read


def is_unaligned(name: str) -> bool:
    """Whether a kernel of this name multiplies matrices on tensor cores and loads less than 16 bytes at once."""
    return _type(name) is not None


def _type(name: str) -> tuple[str, int] | None:
    """The type of the operands, and how many of them are 16 bytes; None for all other kernels."""
    name = name[:MOST_CHARACTERS]
    if not _UNALIGNED.search(name) or not is_tensor_core(name) or kernel_kind(name) != "matrix product":
        return None
    return next(((dtype, multiple) for pattern, dtype, multiple in _TYPES if pattern.search(name)), None)


def unaligned_products(view: RankView) -> list[UnalignedProduct]:
    """The products of a rank by operator and size, most time first."""
    columns = view.columns
    operators = columns.rows(OPERATOR_CATEGORIES, _OPERANDS.__contains__)
    ranges = Ranges.of_rows(columns, operators)
    time_ns: Counter[tuple[int, str, int]] = Counter()  # by row of the operator, or NOWHERE
    for device in view.devices:
        operations, steps = device.operations, Intervals.union(*bounds(device.windows))
        kernels = columns.of_category(KERNEL_CATEGORIES, operations.rows) & columns.named(is_unaligned, operations.rows)
        rows, launch = operations.rows[kernels], operations.launch[kernels]
        inside = steps.lengths(columns.ts_ns[rows], columns.ends(rows))
        at = np.where(launch == UNLAUNCHED, NOWHERE, ranges.at(columns.thread[launch], columns.ts_ns[launch]))
        for row, place, ns in zip(rows.tolist(), at.tolist(), inside.tolist(), strict=True):
            named = _type(columns.name(row))
            if ns and named is not None:
                time_ns[(NOWHERE if place == NOWHERE else int(operators[place]), *named)] += ns
    return _listed(_by_size(view, time_ns), sum(time_ns.values()), max(1, view.windows))


_Key = tuple[str, str, int, tuple[tuple[int, ...], ...], tuple[int, ...]]


def _by_size(view: RankView, time_ns: Mapping[tuple[int, str, int], int]) -> Mapping[_Key, list[int]]:
    rows = sorted({row for row, _, _ in time_ns if row != NOWHERE})[:_MOST_READ]
    try:
        read = operator_arguments(view.trace, np.array(rows, dtype=np.int64))
    except TraceError:
        read = []
    called: dict[int, dict[str, Any]] = dict(zip(rows, read, strict=False))
    found: dict[_Key, list[int]] = defaultdict(list)
    for (row, dtype, multiple), ns in time_ns.items():
        operator = "" if row == NOWHERE else view.columns.name(row)
        factors = _factors(operator, called.get(row, {}))
        sizes = tuple(size for size, _ in factors)
        lengths = tuple(sorted({length for length in _contiguous(factors) if length % multiple}))
        found[operator, dtype, multiple, sizes, lengths].append(ns)
    return found


def _listed(found: Mapping[_Key, Sequence[int]], whole_ns: int, steps: int) -> list[UnalignedProduct]:
    longest = sorted(found.items(), key=lambda item: -sum(item[1]))
    return [
        UnalignedProduct(
            operator=operator,
            dtype=dtype,
            multiple=multiple,
            sizes=[list(size) for size in sizes],
            lengths=list(lengths),
            calls_per_step=len(times) / steps,
            part=sum(times) / whole_ns,
        )
        for (operator, dtype, multiple, sizes, lengths), times in longest
    ]


_Factor = tuple[tuple[int, ...], tuple[int, ...]]  # size and strides; no strides where the trace lacks them


def _factors(operator: str, call: Mapping[str, Any]) -> list[_Factor]:
    """The shapes of both factors; empty if the trace lacks sizes, or if they are not those of a product."""
    first = _OPERANDS.get(operator, 0)
    sizes = _lists(call.get("Input Dims"), first)
    strides = _lists(call.get("Input Strides"), first)
    if len(sizes) < 2 or any(len(size) < 2 for size in sizes) or sizes[0][-1] != sizes[1][-2]:
        return []
    known = len(strides) == 2 and all(len(stride) == len(size) for stride, size in zip(strides, sizes, strict=True))
    return [(size, strides[at] if known else ()) for at, size in enumerate(sizes)]


def _lists(written: object, first: int) -> list[tuple[int, ...]]:
    inputs = written[first : first + 2] if isinstance(written, list) else []
    return [tuple(size) for size in inputs if isinstance(size, list) and all(map(_is_length, size))]


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < _NO_LENGTH


def _contiguous(factors: Sequence[_Factor]) -> Iterator[int]:
    """Row lengths in memory of both factors and the result; all possible ones if strides are unknown."""
    for size, strides in factors:
        if not strides or strides[-1] == 1:
            yield size[-1]
        if not strides or strides[-1] != 1:
            yield size[-2]
    if factors:
        yield factors[1][0][-1]
