"""Sorts of long rows, by the function of the script that calls them, and what is read of the result.

Read from the sizes of inputs in the detailed window. Slices and elements of what was sorted, among the next operators,
show how many values of each row are read, and whether these are the first or last ones. All are, where an operator that
computes on all of them comes first. `torch.quantile` sorts its input to read two values for each quantile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dptune.measure.host.by_function import by_function, lengths_ns, longest_first, outside_backward
from dptune.measure.host.outermost import Call, Outermost, calls, integer, numel
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.view_operators import VIEWS
from dptune.measure.views import RankView
from dptune.measured import FullSort
from dptune.trace.kernels import OPERATOR_CATEGORIES

LEAST_LENGTH = 256  # of a row; a selection among fewer costs about as much as sorting them
_SORTS = ("aten::sort", "aten::argsort", "aten::msort")
_QUANTILES = ("aten::quantile", "aten::nanquantile")
_NEIGHBORS = 2  # values that a quantile lies between
_AFTER = 12  # operators after a sort, among which its result is sliced
_MOST = 2_000  # sorts that are looked at


def full_sorts(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[FullSort]:
    """The functions that spend most in them, each on the rank where it spends most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[FullSort]:
    columns = view.columns
    sorts = outside_backward(view, columns.rows(OPERATOR_CATEGORIES, lambda name: name in (*_SORTS, *_QUANTILES)))
    recorded = RecordedOperators.of(view) if len(sorts) else None
    if recorded is None:
        return
    order = Outermost.of(view, recorded)
    sorts = sorts[np.isin(sorts, order.rows)][:_MOST]  # not those in another operator: a quantile's own sort
    known = calls(view, [near for row in sorts.tolist() for near in (row, *order.after(row, _AFTER))])
    long = {row: size for row in sorts.tolist() if row in known and (size := _size(known[row]))}
    for function in by_function(view, np.array(sorted(long), dtype=np.int64), untraced_ns):
        longest = int(function.rows[lengths_ns(columns, function.rows).argmax()])
        dim, length = long[longest]
        read, inner = _read(known[longest], dim, [known[row] for row in order.after(longest, _AFTER)])
        yield FullSort(
            name=function.name,
            at=function.at,
            length=length,
            rows=numel(known[longest].shapes[0]) // length,
            read=read,
            inner=inner,
            quantile=known[longest].name in _QUANTILES,
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
    given = call.values[2:3] if call.name in _QUANTILES else call.values[1:]
    numbers = [number for value in given if (number := integer(value)) is not None]
    if call.name in _QUANTILES and not numbers:
        return (0, numel(shape)) if numel(shape) >= LEAST_LENGTH else None  # of the flattened tensor
    dim = 0 if call.name == "aten::msort" else numbers[0] if numbers else -1
    if not -len(shape) <= dim < len(shape):
        return None
    dim %= len(shape)
    return (dim, shape[dim]) if shape[dim] >= LEAST_LENGTH else None


def _read(sort: Call, dim: int, following: Sequence[Call]) -> tuple[int | None, bool]:
    """How many values of each row the next operators take, and whether other ones than the first or last of the row.

    All where one operator computes on all; None where none takes any.
    """
    if sort.name in _QUANTILES:
        asked = sort.shapes[1] if len(sort.shapes) > 1 else []
        return _NEIGHBORS * numel(asked), True
    shape = sort.shapes[0]
    length = shape[dim]
    places: set[int] = set()
    for call in following:
        if not any(numel(operand) >= numel(shape) for operand in call.shapes):
            continue
        numbers = [integer(value) for value in call.values[1:]]
        if call.name not in VIEWS:
            return (length, False) if not places else (len(places), _is_inner(places, length))
        if call.shapes[0] != shape or not numbers or numbers[0] is None or numbers[0] % len(shape) != dim:
            continue
        if call.name == "aten::select" and len(numbers) > 1 and numbers[1] is not None:
            places.add(numbers[1] % length)
        if call.name == "aten::slice" and len(numbers) > 2:
            taken = range(length)[slice(*numbers[1:4])]
            places.update(taken if len(taken) < length else ())
    return (len(places), _is_inner(places, length)) if places else (None, False)


def _is_inner(places: set[int], length: int) -> bool:
    """Whether they are not the first values of the row, nor the last."""
    count = len(places)
    return places not in (set(range(count)), set(range(length - count, length)))
