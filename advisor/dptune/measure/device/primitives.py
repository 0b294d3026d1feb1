"""How many different matrix products and convolutions a CPU computes, by their sizes, layouts and types.

oneDNN keeps a descriptor and its kernels of each one until the process ends: memory that is no tensor. A product is
oneDNN's in 16 bits, MKL's in fp32; a convolution is oneDNN's in both.
Source: torch 2.13, aten/src/ATen/native/mkldnn/Matmul.cpp, which leaves out the smallest; CPUFlashAttention's backward
pass multiplies by gemm, three times for each size.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.operator_arguments import OperatorArguments, value_of
from dptune.measure.views import RankView
from dptune.measured import CpuPrimitives
from dptune.trace.kernels import OPERATOR_CATEGORIES

_PRODUCT = re.compile(r"aten::(mm|addmm|bmm|baddbmm|_addmm_activation)$")
_ATTENTION = re.compile(r"aten::_scaled_dot_product_flash_attention_for_cpu_backward$")
_CONVOLUTION = re.compile(r"aten::(convolution|convolution_backward)$")
_OF_ATTENTION = 3
_LEAST = 16**3  # multiplications
_HALVES = (b"BFloat16", b"Half")


def cpu_primitives(view: RankView) -> CpuPrimitives:
    """Of all operators of a trace, where it shows the sizes of their inputs."""
    rows = view.columns.rows(
        OPERATOR_CATEGORIES, lambda name: any(kind.match(name) for kind in (_PRODUCT, _ATTENTION, _CONVOLUTION))
    )
    try:
        read = OperatorArguments.reading(view.trace, rows)
    except TraceError:
        return CpuPrimitives()
    names, numbers = view.columns.names_of(rows), read.written[read.places(rows)]
    alike, place = np.unique(numbers, return_inverse=True)
    texts = read.texts(alike)
    called = {(name, texts[number]) for name, number in zip(names, place.tolist(), strict=True)}
    counts = dict.fromkeys(CpuPrimitives.model_fields, 0)
    for name, (dims, former_dims, types, *_) in called:
        if not (dims or former_dims):
            continue
        kind, times = _kind(name, value_of(dims or former_dims))
        if kind:
            counts[kind] += times
            counts[f"half_{kind}"] += times if any(half in types for half in _HALVES) else 0
    return CpuPrimitives(**counts)


def _kind(name: str, sizes: Any) -> tuple[str, int]:
    """What it counts as, and how often; none where it is too small for oneDNN."""
    if _CONVOLUTION.match(name):
        return "convolutions", 1
    if _ATTENTION.match(name):
        return "products", _OF_ATTENTION
    return ("products", 1) if _multiplications(sizes) > _LEAST else ("", 0)


def _multiplications(sizes: Any) -> int:
    """Of the last two inputs with two or three dimensions: rows, columns of the first, columns of the second."""
    matrices = [size for size in sizes if isinstance(size, list) and len(size) in (2, 3)] if sizes else []
    if len(matrices) < 2:
        return 0
    first, second = matrices[-2:]
    return math.prod(first) * int(second[-1])
