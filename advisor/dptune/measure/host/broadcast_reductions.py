"""Pairwise values that broadcasting writes out and a reduction adds up, by the function of the script.

Read from the order and the sizes of inputs in the detailed window. The first operator of a chain has two operands that
are both much smaller than its result: `a[:, None] - b[None]`. Elementwise operators on the result may follow, and then
a reduction of it. A chain does not count if another operator reads the large tensor: it is then needed. Also found is
a call of `cosine_similarity` or `pairwise_distance` on such operands, which does all of this inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.host.by_function import by_function, lengths_ns, longest_first, outside_backward
from dptune.measure.host.outermost import Call, Outermost, calls, numel
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.view_operators import VIEWS
from dptune.measure.views import RankView
from dptune.measured import BroadcastReduction, PairKind
from dptune.trace.kernels import OPERATOR_CATEGORIES

LEAST_NUMBERS = 2**14  # of the large tensor: of smaller ones the calls take longer than reading and writing
_DIFFERENCES = ("aten::sub", "aten::rsub")
_PRODUCTS = ("aten::mul",)
_WHOLE: dict[str, PairKind] = {"aten::cosine_similarity": "cosine", "aten::pairwise_distance": "distance"}
_SQUARES = ("aten::square", "aten::pow", "aten::pow_", "aten::square_")
_MAGNITUDES = ("aten::abs", "aten::abs_")
_SUMS = ("aten::sum", "aten::mean")
_NORMS = ("aten::norm", "aten::linalg_norm", "aten::linalg_vector_norm")
_NUMBERS = re.compile(r"-?\d+")
_AFTER = 40  # operators after the first, among which the chain ends and no other operator reads the large tensor
_MOST = 2_000  # chains that are followed


@dataclass(frozen=True, eq=False)
class _Chain:
    """The operators of a chain, what it computes, and the sizes of its operands and of their combination."""

    rows: list[int]
    kind: PairKind
    operands: tuple[list[int], list[int]]
    whole: list[int]


def broadcast_reductions(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[BroadcastReduction]:
    """The functions that spend most in them, each on the rank where it spends most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[BroadcastReduction]:
    columns = view.columns
    firsts = (*_DIFFERENCES, *_PRODUCTS, *_WHOLE)
    makers = outside_backward(view, columns.rows(OPERATOR_CATEGORIES, firsts.__contains__))
    recorded = RecordedOperators.of(view) if len(makers) else None
    if recorded is None:
        return
    order = Outermost.of(view, recorded)
    first = calls(view, makers[np.isin(makers, order.rows)].tolist())
    large = [(call, operands, whole) for call in first.values() for operands, whole in _expanded(call)][:_MOST]
    known = calls(view, [row for call, _, _ in large for row in order.after(call.row, _AFTER)])
    chains: dict[int, _Chain] = {}
    for call, operands, whole in large:
        following = [known[row] for row in order.after(call.row, _AFTER) if row in known]
        chain = _chain(call, operands, whole, following)
        if chain is not None:
            chains |= dict.fromkeys(chain.rows, chain)
    for function in by_function(view, np.array(sorted(chains), dtype=np.int64), untraced_ns):
        longest = chains[int(function.rows[lengths_ns(columns, function.rows).argmax()])]
        yield BroadcastReduction(
            name=function.name,
            at=function.at,
            kind=longest.kind,
            left=longest.operands[0],
            right=longest.operands[1],
            whole=longest.whole,
            calls=len({id(chains[row]) for row in function.rows.tolist()}) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns,
            backward_ns=function.backward_ns,
            share=function.share,
        )


def _expanded(call: Call) -> Iterator[tuple[tuple[list[int], list[int]], list[int]]]:
    """Both operands and their combination, where it is larger than both and large."""
    if len(call.shapes) < 2 or not call.shapes[0] or not call.shapes[1]:
        return
    operands = (_stored(call, 0), _stored(call, 1))
    whole = _combined(call.shapes[0], call.shapes[1])
    if whole and numel(whole) >= LEAST_NUMBERS and numel(whole) > max(map(numel, operands)):
        yield operands, whole


def _stored(call: Call, at: int) -> list[int]:
    """The size of an input in memory: an expanded dimension has stride 0."""
    shape, strides = call.shapes[at], call.strides[at] if at < len(call.strides) else []
    if len(strides) != len(shape):
        return shape
    return [1 if stride == 0 else length for length, stride in zip(shape, strides, strict=True)]


def _combined(left: Sequence[int], right: Sequence[int]) -> list[int] | None:
    """The size that broadcasting gives; None for sizes that do not fit."""
    dimensions = max(len(left), len(right))
    pairs = zip(_padded(left, dimensions), _padded(right, dimensions), strict=True)
    whole = [max(pair) if min(pair) == 1 or pair[0] == pair[1] else 0 for pair in pairs]
    return whole if all(whole) else None


def _padded(shape: Sequence[int], dimensions: int) -> list[int]:
    return [1] * (dimensions - len(shape)) + list(shape)


def _chain(
    call: Call, operands: tuple[list[int], list[int]], whole: list[int], following: Sequence[Call]
) -> _Chain | None:
    """What follows on the large tensor, up to its reduction; None if it is not only reduced."""
    if call.name in _WHOLE:
        return _Chain([call.row], _WHOLE[call.name], operands, whole)
    kind: PairKind | None = "product" if call.name in _PRODUCTS else None
    product = kind is not None
    rows, reduced = [call.row], False
    for after in following:
        reads = [shape for shape in after.shapes if shape == whole]
        if not reads and after.name in (*_DIFFERENCES, *_PRODUCTS) and _combined(*after.shapes[:2]) == whole:
            break  # the next chain of this size
        if not reads or after.name in VIEWS:
            continue
        if reduced:
            return None
        if after.name in _SUMS or after.name in _NORMS:
            kind = _reduced(after, kind, operands, whole, product=product)
            if kind is None:
                return None
            reduced = True
        elif product or kind is not None:
            return None
        elif _squares(after, whole):
            kind = "squared"
        elif after.name in _MAGNITUDES:
            kind = "absolute"
        else:
            return None
        rows.append(after.row)
    return _Chain(rows, kind, operands, whole) if reduced and kind is not None else None


def _squares(call: Call, whole: Sequence[int]) -> bool:
    if call.name in ("aten::pow", "aten::pow_"):
        return len(call.values) > 1 and call.values[1] in ("2", "2.", "2.0")
    return call.name in _SQUARES or (call.name in _PRODUCTS and call.shapes[:2] == [whole, whole])


def _reduced(
    call: Call, kind: PairKind | None, operands: tuple[list[int], list[int]], whole: Sequence[int], *, product: bool
) -> PairKind | None:
    """What the reduction of the large tensor computes; None if no call of a library computes it."""
    norm = call.name in _NORMS
    at = 2 if norm else 1  # a norm has its order first
    numbers = [int(number) for number in _NUMBERS.findall(call.values[at])] if len(call.values) > at else []
    dimensions = {number % len(whole) for number in numbers if -len(whole) <= number < len(whole)}
    if not dimensions:
        return None
    if product:
        return None if norm else kind
    sizes = [_padded(operand, len(whole)) for operand in operands]
    if len(dimensions) > 1 or any(size[dim] != whole[dim] for size in sizes for dim in dimensions):
        return None
    if norm:
        return "distance" if kind is None and call.values[1] in ("2", "2.", "2.0", "") else None
    return kind
