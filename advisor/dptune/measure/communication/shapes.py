"""Bytes of a call's tensors, from the shapes that were recorded."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from dptune.measure.communication.dtypes import bytes_of, dtype_of
from dptune.trace.kineto.faults import are_dims
from dptune.trace.kineto.schema import integer

_MOST_BYTES = 2**40  # of one message: more than the memory of any device


def size_of(total_bytes: int) -> int | None:
    """A size, but none that no tensor can have."""
    return total_bytes if total_bytes <= _MOST_BYTES else None


def tensors_of(dims_json: str | None, types_json: str | None) -> tuple[str | None, int | None]:
    """Type and bytes of a call's tensors from `Input Dims` and `Input type`; None where they were not recorded."""
    try:
        dims, types = msgspec.json.decode(dims_json or ""), msgspec.json.decode(types_json or "")
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(dims, list) or not isinstance(types, list):
        return None, None
    found = [(dtype_of(word), shape) for word, shape in zip(types, dims, strict=False)]
    known = [(dtype, shape) for dtype, shape in found if dtype is not None]
    if not known:
        return None, None
    if not are_dims(dims):
        return known[0][0], None
    return known[0][0], sum(elements_of(shape) * bytes_of(dtype) for dtype, shape in known)


def elements_of(shape: Any) -> int:
    """Elements of a shape, or of a list of shapes, however deep."""
    total, left = 0, [shape]
    while left:
        part = left.pop()
        if isinstance(part, list):
            inner = [nested_shape for nested_shape in part if isinstance(nested_shape, list)]
            total += 0 if inner else math.prod(max(integer(length), 0) for length in part)
            left += inner
    return total
