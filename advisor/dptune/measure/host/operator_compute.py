"""How much of the time of operators is compute at least, by how long each of them runs.

A call of an operator costs the host a few microseconds. What an operator takes beyond that, without the operators that
it calls, is compute on a CPU. Input sizes give the upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.recorded_operators import CALL_NS
from dptune.measure.host.view_operators import VIEWS
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.views import RankView
from dptune.trace.kernels import OPERATOR_CATEGORIES


@dataclass(frozen=True)
class LeastCompute:
    """A lower bound of the compute of operators, and the time of these operators, ns."""

    computed_ns: int
    operators_ns: int

    @property
    def share(self) -> float:
        """The part of the operators' time."""
        return self.computed_ns / self.operators_ns if self.operators_ns else 0.0


def least_compute(view: RankView, spans: Intervals, threads: Ints) -> LeastCompute | None:
    """Of all operators that start in these spans of these threads; None where devices compute beside the host."""
    if not view.devices or not all(device.operations.on_cpu for device in view.devices):
        return None
    columns = view.columns
    rows = columns.rows(OPERATOR_CATEGORIES)
    rows = rows[np.isin(columns.thread[rows], threads) & spans.hold(columns.ts_ns[rows])]
    parents = Ranges.of_rows(columns, rows).parents()
    lengths = columns.ends(rows) - columns.ts_ns[rows]
    inner = parents != NOWHERE
    alone = lengths.copy()
    np.subtract.at(alone, parents[inner], lengths[inner])
    alone[columns.named(VIEWS.__contains__, rows)] = 0  # they compute nothing: what takes long there is the host
    return LeastCompute(int(np.maximum(0, alone - CALL_NS).sum()), int(lengths[~inner].sum()))
