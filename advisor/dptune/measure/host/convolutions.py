"""Direct convolutions with long kernels, by the function of the script that calls them, with their backward pass.

Read from the sizes of inputs in the detailed window. What counts are the taps that a convolution multiplies for each
position of its padded input: one with a stride, or with few outputs, multiplies fewer than its kernel is long, and a
convolution by FFT would then compute outputs that nobody needs.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.by_function import by_function, lengths_ns, longest_first, outside_backward
from dptune.measure.host.operator_arguments import operator_arguments
from dptune.measure.views import RankView
from dptune.measured import LongConvolution
from dptune.trace.kernels import OPERATOR_CATEGORIES

LEAST_TAPS = 512  # per position: FFT takes 3 transforms of about log2(N) operations each, 10 to 20 for 1,024 to 10**6
_NAME = "aten::convolution"  # that every convolution of the script calls; it has plain numbers for its padding
_MOST = 20_000  # convolutions whose sizes are read


def long_convolutions(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[LongConvolution]:
    """The functions that spend most in long direct convolutions, each on the rank where it spends most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[LongConvolution]:
    columns = view.columns
    rows = outside_backward(view, columns.rows(OPERATOR_CATEGORIES, lambda name: name == _NAME))[:_MOST]
    try:
        found = operator_arguments(view.trace, rows)
    except TraceError:
        return
    sizes = {row: size for row, call in zip(rows.tolist(), found, strict=True) if (size := long_kernel(call))}
    for function in by_function(view, np.array(list(sizes), dtype=np.int64), untraced_ns):
        taps, length = sizes[int(function.rows[lengths_ns(columns, function.rows).argmax()])]
        yield LongConvolution(
            name=function.name,
            at=function.at,
            taps=taps,
            length=length,
            calls=len(function.rows) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns,
            backward_ns=function.backward_ns,
            share=function.share,
        )


def long_kernel(call: Mapping[str, Any]) -> tuple[int, int] | None:
    """Taps of a convolution's kernel and length of its padded input, in the dimension where FFT computes far less.

    None without one, for a transposed convolution, and where the trace lacks sizes.
    """
    shapes, values = _shapes(call.get("Input Dims")), call.get("Concrete Inputs")
    if shapes is None or not isinstance(values, list) or len(values) <= 6 or values[6] != "False":
        return None
    strides, paddings, dilations = (_numbers(value) for value in values[3:6])
    longest = None
    for at, (size, taps) in enumerate(zip(shapes[0][2:], shapes[1][2:], strict=True)):
        stride, padding, dilation = (_of_dimension(each, at) for each in (strides, paddings, dilations))
        if stride is None or padding is None or dilation is None or stride < 1:
            return None
        length = size + 2 * padding
        outputs = (length - dilation * (taps - 1) - 1) // stride + 1
        if outputs > 0 and taps * outputs >= LEAST_TAPS * length and (longest is None or taps > longest[0]):
            longest = taps, length
    return longest


def _shapes(shapes: Any) -> list[list[int]] | None:
    """Of the batch and the kernel, which have the same number of dimensions; None where they do not."""
    both = shapes[:2] if isinstance(shapes, list) else []
    if not all(isinstance(shape, list) and all(type(length) is int for length in shape) for shape in both):
        return None
    return both if len(both) == 2 and len(both[0]) == len(both[1]) > 2 and math.prod(both[0]) > 0 else None


def _numbers(text: Any) -> list[int]:
    try:
        numbers = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return numbers if isinstance(numbers, list) and all(type(number) is int for number in numbers) else []


def _of_dimension(numbers: list[int], at: int) -> int | None:
    """A setting in one dimension; a single number is of all."""
    if len(numbers) == 1:
        return numbers[0]
    return numbers[at] if at < len(numbers) else None
