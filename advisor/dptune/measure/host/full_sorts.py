"""Sorts of long rows, by the function of the script that calls them, and what is read of the result.

Read from the sizes of inputs in the detailed window. A slice of what was sorted, among the next operators, shows how
many values of each row are read. All are, where an operator that computes on all of them comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dptune.measure.host.by_function import by_function, lengths_ns, longest_first, outside_backward
from dptune.measure.host.outermost import VIEWS, Call, Outermost, calls, integer, numel
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.views import RankView
from dptune.measured import FullSort
from dptune.trace.kernels import OPERATOR_CATEGORIES

LEAST_LENGTH = 256  # of a row; a selection among fewer costs about as much as sorting them
_SORTS = ("aten::sort", "aten::argsort", "aten::msort")
_AFTER = 12  # operators after a sort, among which its result is sliced
_MOST = 2_000  # sorts that are looked at


def full_sorts(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[FullSort]:
    """The functions that spend most in them, each on the rank where it spends most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first([found for view in views for found in _of_rank(view, untraced_ns.get(view.rank))])


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[FullSort]:
    columns = view.columns
    sorts = outside_backward(view, columns.rows(OPERATOR_CATEGORIES, lambda name: name in _SORTS))
    recorded = RecordedOperators.of(view) if len(sorts) else None
    if recorded is None:
        return
    order = Outermost.of(view, recorded)
    sorts = sorts[np.isin(sorts, order.rows)][:_MOST]  # not those that another operator needs, for example a quantile
    known = calls(view, [near for row in sorts.tolist() for near in (row, *order.after(row, _AFTER))])
    long = {row: size for row in sorts.tolist() if row in known and (size := _size(known[row]))}
    for function in by_function(view, np.array(sorted(long), dtype=np.int64), untraced_ns):
        longest = int(function.rows[lengths_ns(columns, function.rows).argmax()])
        dim, length = long[longest]
        yield FullSort(
            name=function.name,
            at=function.at,
            length=length,
            rows=numel(known[longest].shapes[0]) // length,
            read=_read(known[longest], dim, [known[row] for row in order.after(longest, _AFTER)]),
            calls=len(function.rows) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns,
            backward_ns=function.backward_ns,
            share=function.share,
        )


def _size(call: Call) -> tuple[int, int] | None:
    """Dimension and length of the rows that are sorted; None of short ones, and where the size is not known."""
    shape = call.shapes[0] if call.shapes else []
    if not shape or not numel(shape):
        return None
    numbers = [number for value in call.values[1:] if (number := integer(value)) is not None]
    dim = 0 if call.name == "aten::msort" else numbers[0] if numbers else -1
    if not -len(shape) <= dim < len(shape):
        return None
    dim %= len(shape)
    return (dim, shape[dim]) if shape[dim] >= LEAST_LENGTH else None


def _read(sort: Call, dim: int, following: Sequence[Call]) -> int | None:
    """How many values of each row the next operators take: all where one computes on all; None where none does."""
    shape = sort.shapes[0]
    for call in following:
        if not any(numel(operand) >= numel(shape) for operand in call.shapes):
            continue
        numbers = [integer(value) for value in call.values[1:]]
        if call.name not in VIEWS:
            return shape[dim]
        if call.shapes[0] != shape or not numbers or numbers[0] is None or numbers[0] % len(shape) != dim:
            continue
        if call.name == "aten::select":
            return 1
        if call.name == "aten::slice" and len(numbers) > 2:
            taken = len(range(shape[dim])[slice(*numbers[1:4])])
            if taken < shape[dim]:
                return taken
    return None
