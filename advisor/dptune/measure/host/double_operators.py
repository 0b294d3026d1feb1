"""Operators on float64 tensors outside of backward passes, by the function of the script that calls them.

Read from the types and sizes of inputs in the detailed window. Tensors of few elements do not count: metrics and losses
are often added up as doubles. Functions that decompose matrices or solve equations do not count either, as they need
the digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.by_function import by_function, lengths_ns, longest_first, outside_backward
from dptune.measure.host.operator_arguments import OperatorArguments, value_of
from dptune.measure.host.outermost import numel
from dptune.measure.views import RankView
from dptune.measured import DoubleFunction

_LEAST_ELEMENTS = 1024
_DOUBLE = b'"double"'
_NEED_DIGITS = re.compile(r"aten::_?(linalg_|cholesky|svd|qr$|inverse|pinverse|(log|slog)?det$|lu_|triangular_solve)")


def double_functions(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[DoubleFunction]:
    """The functions that spend most in them, each on the rank where it spends most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[DoubleFunction]:
    try:
        known = OperatorArguments.of(view.trace)
    except TraceError:
        return
    if known is None:
        return
    numbers, place = np.unique(known.written, return_inverse=True)
    doubles = np.array([_on_doubles(text) for text in known.texts(numbers)], dtype=np.bool_)
    rows = known.rows[doubles[place.reshape(-1)]] if len(numbers) else known.rows
    columns = view.columns
    for function in by_function(view, outside_backward(view, rows), untraced_ns):
        names = [columns.name(row) for row in function.rows.tolist()]
        if any(map(_NEED_DIGITS.match, names)):
            continue
        spent: dict[str, int] = {}
        for name, length in zip(names, lengths_ns(columns, function.rows).tolist(), strict=True):
            spent[name] = spent.get(name, 0) + length
        yield DoubleFunction(
            name=function.name,
            at=function.at,
            operator=max(spent, key=lambda name: spent[name]),
            calls=len(function.rows) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns,
            backward_ns=function.backward_ns,
            share=function.share,
        )


def _on_doubles(text: tuple[bytes, ...]) -> bool:
    """Whether one of an operator's inputs is a float64 tensor that is not small."""
    dims, former_dims, types, *_ = text
    if _DOUBLE not in types:
        return False
    sizes, kinds = value_of(dims or former_dims), value_of(types)
    if not isinstance(sizes, list) or not isinstance(kinds, list):
        return False
    return any(
        kind == "double" and _elements(size) >= _LEAST_ELEMENTS for size, kind in zip(sizes, kinds, strict=False)
    )


def _elements(size: Any) -> int:
    return numel(size) if isinstance(size, list) and all(type(length) is int for length in size) else 0
