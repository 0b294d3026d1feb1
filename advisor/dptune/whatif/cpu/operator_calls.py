"""What a step takes whatever the batch: calling its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.intervals import Intervals, Ints, interval
from dptune.trace.columns import Columns

_VIEW = "aten::transpose"  # computes nothing: it takes what calling an operator takes on that machine
# What is longer between two operators is no calling of them: the script's own work, which may grow with the batch.
_MOST_BETWEEN_NS = 100_000


@dataclass(frozen=True)
class OperatorCalls:
    """Of one rank, medians over steps: the operators of its passes, the time of their thread between them, ns.

    `view_ns` is what one takes that computes nothing, 0 where there is none. `hooks_ns` is what hooks of sharded
    modules take besides, with their operators, none of which are in the others.
    """

    operators: float = 0.0
    between_ns: float = 0.0
    view_ns: float = 0.0
    hooks_ns: float = 0.0


def operator_calls(
    columns: Columns, operators: Ints, loading: Intervals, waits: Intervals, passes: Sequence[Sequence[tuple[int, int]]]
) -> OperatorCalls:
    """`operators` are rows of the script's thread, `passes` start and end of each pass by step.

    Operators that prepare batches on that thread (`loading`) are left out, because more samples take more of them;
    `waits` are no time between operators.
    """
    ts = np.sort(columns.ts_ns[operators])
    ts = ts[loading.lengths(ts, ts + 1) == 0]
    operating = Intervals.union(columns.ts_ns[operators], columns.ends(operators))
    counts = [np.searchsorted(ts, step[-1][1]) - np.searchsorted(ts, step[0][0]) for step in passes]
    between_ns = [
        sum(_between_ns(operating.within(*bounds), waits.within(*bounds), *bounds) for bounds in step)
        for step in passes
    ]
    views = columns.rows({"cpu_op"}, lambda name: name == _VIEW)
    return OperatorCalls(
        float(np.median(counts)),
        float(np.median(between_ns)),
        float(np.median(columns.dur_ns[views])) if len(views) else 0.0,
    )


def _between_ns(operating: Intervals, waits: Intervals, start_ns: int, end_ns: int) -> int:
    gaps = interval(start_ns, end_ns) - operating - waits
    return int(np.minimum(gaps.end_ns - gaps.start_ns, _MOST_BETWEEN_NS).sum())
