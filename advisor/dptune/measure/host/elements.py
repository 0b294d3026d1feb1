"""How much data the operators of a rank read per step, by the shapes of their inputs: more data is more work.

Shapes do not depend on how fast a machine runs, so they separate a rank that has more to do from a rank that is slower.
"""

from __future__ import annotations

import numpy as np

from dptune.errors import TraceError
from dptune.measure.communication.shapes import elements_of
from dptune.measure.host.operator_arguments import operator_arguments
from dptune.measure.views import RankView
from dptune.trace.kernels import OPERATOR_CATEGORIES

_MOST_OPERATORS = 50_000  # of more, reading their arguments takes seconds


def elements_per_step(view: RankView) -> float | None:
    """Elements of all inputs of operators in the steps of a detailed window; None where shapes were not recorded."""
    columns = view.trace.columns
    rows = columns.rows(OPERATOR_CATEGORIES, lambda name: name.startswith("aten::"))
    starts = columns.ts_ns[rows]
    inside = np.zeros(len(rows), dtype=bool)
    for step in view.steps:
        inside |= (starts >= step.start_ns) & (starts < step.end_ns)
    rows = rows[inside]
    if not len(rows) or len(rows) > _MOST_OPERATORS:
        return None
    try:
        found = [args.get("Input Dims") for args in operator_arguments(view.trace, rows)]
    except TraceError:
        return None
    if not any(dims for dims in found):
        return None
    return sum(map(elements_of, found)) / len(view.steps)
