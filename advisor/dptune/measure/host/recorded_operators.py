"""Input sizes and autograd nodes of operators in a detailed trace.

On each thread, a trace numbers the nodes of the autograd graph in the order in which operators create them: an operator
has the number of the next node to be created, and the engine's range that runs a node has the number of the node. So
the nodes of an operator are those from its number to that of the next operator that starts after it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.operator_arguments import OperatorArguments
from dptune.measure.host.view_operators import VIEWS
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.once import once_for_each
from dptune.measure.views import RankView
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES

NODE = "autograd::engine::evaluate_function: "
_ELEMENT_NS = 1.0  # 4 bytes at 4 GB/s, less than one core of a server reads
CALL_NS = 10_000  # of an operator call with the profiler, if its compute does not follow from its inputs
_PRODUCTS = ("mm", "matmul", "linear", "conv", "einsum", "bilinear", "scaled_dot_product", "lstm", "gru")
_MOST = 100_000  # operators: reading the arguments of more takes seconds, so fewer steps are read


@dataclass(frozen=True, eq=False)
class RecordedOperators:
    """Operators of the first steps of a view, ascending. `numbers` are autograd's sequence numbers, -1 for none."""

    steps: int
    columns: Columns
    rows: Ints
    numbers: Ints
    _arguments: OperatorArguments

    @staticmethod
    @once_for_each
    def of(view: RankView) -> RecordedOperators | None:
        """Read as many steps as have at most _MOST operators; None if not even one step does, or none has any."""
        columns = view.trace.columns
        rows = columns.rows(OPERATOR_CATEGORIES)
        starts = columns.ts_ns[rows]
        inside = starts >= view.steps[0].start_ns
        counts = np.searchsorted(np.sort(starts[inside]), [step.end_ns for step in view.steps])
        steps = int(((counts > 0) & (counts <= _MOST)).sum())
        if not steps:
            return None
        rows = rows[inside & (starts < view.steps[steps - 1].end_ns)]
        try:
            read = OperatorArguments.reading(view.trace, rows)
        except TraceError:
            return None
        return RecordedOperators(steps, columns, rows, read.numbers[read.places(rows)], read)

    @cached_property
    def elements(self) -> Ints:
        """How many elements the inputs of each operator have together; 0 without sizes."""
        return self._arguments.elements[self._arguments.places(self.rows)]

    def covered(self, operators: Ints) -> Ints:
        """The given rows that are among the recorded ones."""
        return operators[np.isin(operators, self.rows)]

    def backward_of(self, operators: Ints) -> Intervals | None:
        """When autograd runs the nodes that these rows created; None if the trace shows no nodes."""
        columns, made = self.columns, set[int]()
        nodes = columns.named(lambda name: name.startswith(NODE), self.rows) & (self.numbers >= 0)
        if not nodes.any():
            return None
        for thread in np.unique(columns.thread[operators]).tolist():
            on_thread = columns.thread[self.rows] == thread
            running = self.rows[nodes & on_thread]
            inside = Intervals.union(columns.ts_ns[running], columns.ends(running)).hold(columns.ts_ns[self.rows])
            counted = on_thread & (self.numbers >= 0) & ~inside  # a node's operators have numbers of their own
            begins, known = columns.ts_ns[self.rows[counted]], self.numbers[counted]
            order = np.argsort(begins, kind="stable")
            begins, known = begins[order], known[order]
            asked = operators[columns.thread[operators] == thread]
            first = np.searchsorted(begins, columns.ts_ns[asked])
            after = np.searchsorted(begins, columns.ends(asked))
            for at, following in zip(first.tolist(), after.tolist(), strict=True):
                if at < following:
                    until = known[following] if following < len(known) else known[at:following].max() + 1
                    made.update(range(int(known[at]), int(until)))
        ran = self.rows[nodes & np.isin(self.numbers, sorted(made))]
        return Intervals.union(columns.ts_ns[ran], columns.ends(ran))

    def computed_ns(self, operators: Ints) -> float:
        """An upper bound of the compute of these rows: by input elements, or their time beyond that of a call.

        Views compute nothing.
        """
        columns = self.columns
        operators = operators[~columns.named(VIEWS.__contains__, operators)]
        lengths = columns.ends(operators) - columns.ts_ns[operators]
        at = np.searchsorted(self.rows, operators).clip(max=len(self.rows) - 1)
        products = columns.named(lambda name: any(word in name for word in _PRODUCTS), operators)
        of_elements = _ELEMENT_NS * self.elements[at]
        return float(np.minimum(lengths, np.where(products, np.maximum(0, lengths - CALL_NS), of_elements)).sum())
