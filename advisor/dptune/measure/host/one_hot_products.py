"""Products of one-hot rows with a matrix, by the function of the script that calls them, with their backward pass.

Read from the order and the input sizes of operators in the detailed window. One-hot rows are made by `one_hot`, by
`scatter_` of a number into zeros, or by indexing `eye`. A product counts if one of its operands has their size and
nothing but casts, copies and views computed on them before: the hard samples of a Gumbel softmax, say, are one-hot
too, but their gradient is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.host.by_function import by_function, lengths_ns, longest_first, outside_backward
from dptune.measure.host.outermost import COPIES, Call, Outermost, calls, integer, numel
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.view_operators import VIEWS
from dptune.measure.views import RankView
from dptune.measured import OneHotProduct
from dptune.trace.kernels import OPERATOR_CATEGORIES

LEAST_CLASSES = 32  # a product over fewer reads hardly more than a lookup
_ONE_HOT = "aten::one_hot"
_SCATTERS = ("aten::scatter_", "aten::scatter")
_INDEXING = ("aten::index", "aten::index_select")
_EYE = "aten::eye"
_ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero_")
_PRODUCTS = tuple(
    "aten::" + name
    for name in ("mm", "matmul", "linear", "addmm", "bmm", "baddbmm", "einsum", "tensordot", "mv", "_sparse_mm")
)
_AFTER = 32  # operators after the rows, among which the product is
_BEFORE = 12  # operators before a scatter, among which its zeros are
_MOST = 2_000  # one-hot tensors that are followed


@dataclass(frozen=True, eq=False)
class _Rows:
    """One-hot rows: the operator that makes them, and how many they are."""

    row: int
    count: int
    classes: int


@dataclass(frozen=True, eq=False)
class _Product:
    rows: _Rows
    sums: bool


def one_hot_products(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[OneHotProduct]:
    """The functions that spend most in them, each on the rank where it spends most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[OneHotProduct]:
    columns = view.columns
    makers = columns.rows(OPERATOR_CATEGORIES, lambda name: name in (_ONE_HOT, _EYE, *_SCATTERS))
    makers = outside_backward(view, makers)
    recorded = RecordedOperators.of(view) if len(makers) else None
    if recorded is None:
        return
    order = Outermost.of(view, recorded)
    made = _one_hot_rows(order, recorded.covered(makers)[:_MOST].tolist())
    following = calls(view, [row for rows in made for row in order.after(rows.row, _AFTER)])
    products: dict[int, _Product] = {}
    costs: set[int] = set()
    for rows in made:
        found, copies = _follow(rows, [following[row] for row in order.after(rows.row, _AFTER) if row in following])
        products |= found
        costs |= {rows.row, *copies, *found} if found else set()
    for function in by_function(view, np.array(sorted(costs), dtype=np.int64), untraced_ns):
        own = function.rows[np.isin(function.rows, list(products))]
        if not len(own):
            continue
        longest = products[int(own[lengths_ns(columns, own).argmax()])]
        yield OneHotProduct(
            name=function.name,
            at=function.at,
            classes=longest.rows.classes,
            rows=longest.rows.count,
            sums=longest.sums,
            calls=len(own) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns,
            backward_ns=function.backward_ns,
            share=function.share,
        )


def _one_hot_rows(order: Outermost, makers: list[int]) -> list[_Rows]:
    """What makes one-hot rows, as outermost operators."""
    known = calls(order.view, makers)
    found: dict[int, _Rows] = {}
    eyes: list[tuple[int, int]] = []
    for row, outer in zip(makers, order.around(makers), strict=True):
        call = known.get(row)
        if call is None or outer is None:
            continue
        if call.name == _EYE:
            eyes.append((outer, integer(call.values[0]) or 0 if call.values else 0))
        elif call.name == _ONE_HOT:
            classes = integer(call.values[1]) if len(call.values) > 1 else None
            if classes is not None and classes > 0 and call.shapes and call.shapes[0]:
                found.setdefault(outer, _Rows(outer, numel(call.shapes[0]), classes))
        elif (size := _scattered(call)) and _is_of_zeros(order, outer):
            found.setdefault(outer, _Rows(outer, *size))
    for eye, classes in eyes:
        indexing = [row for row in order.after(eye, _AFTER) if order.view.columns.name(row) in _INDEXING]
        for row, call in calls(order.view, indexing).items():
            ids = [shape for shape in call.shapes[1:] if shape]
            if ids and call.shapes[0] == [classes, classes]:
                found.setdefault(row, _Rows(row, numel(ids[0]), classes))
    return [rows for rows in found.values() if rows.classes >= LEAST_CLASSES and rows.count > 0]


def _scattered(call: Call) -> tuple[int, int] | None:
    """Rows and width where it writes one number into each row."""
    if len(call.shapes) < 4 or call.shapes[3]:
        return None
    whole, index = call.shapes[0], call.shapes[2]
    if len(whole) < 2 or index != [*whole[:-1], 1]:
        return None
    return numel(whole[:-1]), whole[-1]


def _is_of_zeros(order: Outermost, row: int) -> bool:
    """Whether a scatter is part of `one_hot`, or zeros were made shortly before."""
    name = order.view.columns.name
    return name(row) == _ONE_HOT or any(name(before) in _ZEROS for before in order.before(row, _BEFORE))


def _follow(rows: _Rows, following: Sequence[Call]) -> tuple[dict[int, _Product], list[int]]:
    """The products with these rows, and the copies made of them before; until something else computes on the rows."""
    found: dict[int, _Product] = {}
    copies: list[int] = []
    for call in following:
        operands = [shape for shape in call.shapes if _has_size(shape, rows)]
        if not operands or call.name in VIEWS:
            continue
        if call.name in COPIES:
            if not found:
                copies.append(call.row)
        elif call.name in _PRODUCTS:
            tensors = [shape for shape in call.shapes if len(shape) > 1]
            first = tensors[0] is operands[0]
            sums = (operands[0][-1] == rows.classes) != first
            found[call.row] = _Product(rows, sums)
        else:
            break
    return found, copies


def _has_size(shape: Sequence[int], rows: _Rows) -> bool:
    """Whether a tensor may be these rows, or their transpose."""
    if len(shape) < 2 or numel(shape) != rows.count * rows.classes:
        return False
    return shape[-1] == rows.classes or shape[-2] == rows.classes
