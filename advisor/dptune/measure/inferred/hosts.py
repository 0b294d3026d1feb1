"""What the host's side of a trace shows at all: only then does something that is not there mean that there is none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measure.views import RankView
from dptune.trace.columns import Columns
from dptune.trace.kernels import BACKWARD_NAME, OPTIMIZER_STEP_NAME, RANGE_CATEGORIES

_GRADIENT = re.compile(r"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$")
_OPERATOR = re.compile(r"aten::")


@dataclass(frozen=True, eq=False)
class HostEvents:
    """Operators and ranges of a rank's host that begin in its steps."""

    view: RankView

    @property
    def columns(self) -> Columns:
        """The columns of the trace."""
        return self.view.columns

    def rows(self, pattern: re.Pattern[str]) -> Ints:
        """Rows, in order of time, of ranges and operators in the steps whose name the pattern matches."""
        rows = self.columns.rows(RANGE_CATEGORIES, pattern.match)
        rows = rows[self._in_steps(rows)]
        return rows[np.argsort(self.columns.ts_ns[rows], kind="stable")]

    def _in_steps(self, rows: Ints) -> Mask:
        if not self.view.steps:
            return np.zeros(len(rows), dtype=np.bool_)
        start_ns = self.columns.ts_ns[rows]
        found: Mask = (start_ns >= self.view.steps[0].start_ns) & (start_ns < self.view.steps[-1].end_ns)
        return found

    def inside(self, rows: Ints, around: Ints) -> Mask:
        """Which rows begin inside one of the others, on the same thread."""
        ranges = Ranges.of_rows(self.columns, around)
        found: Mask = ranges.at(self.columns.thread[rows], self.columns.ts_ns[rows]) != NOWHERE
        return found

    @cached_property
    def gradients(self) -> Ints:
        """Rows in which autograd adds a gradient to its parameter: one for each, in every backward pass."""
        return self.rows(_GRADIENT)

    def gradients_by_pass(self) -> list[int]:
        """How many gradients each backward pass adds. Passes are apart where other operators begin between them."""
        columns = self.columns
        passes = Intervals.union(columns.ts_ns[self.backward], columns.ends(self.backward))
        others = self.rows(_OPERATOR)
        others = others[~passes.hold(columns.ts_ns[others])]
        before = np.searchsorted(columns.ts_ns[others], columns.ts_ns[self.gradients])
        return [int(count) for count in np.unique(before, return_counts=True)[1]]

    @cached_property
    def backward(self) -> Ints:
        """Rows of the nodes of backward passes."""
        rows = self.columns.rows(RANGE_CATEGORIES, BACKWARD_NAME.search)
        return rows[self._in_steps(rows)]

    @cached_property
    def trains(self) -> bool:
        """Whether operators of a backward pass were recorded: then those of DDP and FSDP would have been, too."""
        return len(self.backward) > 0

    @cached_property
    def updates(self) -> Ints:
        """Rows of an optimizer's step()."""
        return self.rows(OPTIMIZER_STEP_NAME)
