"""Matrix decompositions by the function of the script that calls them, with their backward pass.

Read from the detailed window: operators of torch.linalg that factor or invert a matrix.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dptune.measure.host.by_function import by_function, lengths_ns, longest_first, outside_backward
from dptune.measure.intervals import Ints
from dptune.measure.views import RankView
from dptune.measured import Decomposition
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES

_NAME = re.compile(
    r"^aten::_?(?:linalg_)?(?P<name>svd|svdvals|eig|eigh|eigvals|eigvalsh|symeig|qr|inv|inverse|solve|cholesky|lstsq|"
    r"pinv|pinverse|matrix_exp|det|slogdet|logdet|lu|lu_factor|lu_solve|householder_product|geqrf|orgqr|ldl_factor|"
    r"ldl_solve|cholesky_inverse|cholesky_solve)(?:_ex|_helper)?$"
)


def decompositions(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[Decomposition]:
    """The functions that spend most in decompositions, each on the rank where it spends most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[Decomposition]:
    columns = view.columns
    rows = columns.rows(OPERATOR_CATEGORIES, lambda name: _NAME.match(name) is not None)
    for function in by_function(view, outside_backward(view, rows), untraced_ns):
        longest = _longest(columns, function.rows)
        yield Decomposition(
            name=function.name,
            at=function.at,
            operator=longest,
            calls=sum(_operator(columns, row) == longest for row in function.rows.tolist()) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns,
            backward_ns=function.backward_ns,
            share=function.share,
        )


def _operator(columns: Columns, row: int) -> str:
    match = _NAME.match(columns.name(row))
    return match["name"] if match else ""


def _longest(columns: Columns, rows: Ints) -> str:
    """The decomposition that takes most; of one inside another the outer."""
    lengths: Counter[str] = Counter()
    for row, length in zip(rows.tolist(), lengths_ns(columns, rows).tolist(), strict=True):
        lengths[_operator(columns, row)] += length
    return lengths.most_common(1)[0][0]
