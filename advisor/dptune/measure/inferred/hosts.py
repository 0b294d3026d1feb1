"""What the host's side of a trace shows at all: only then does something that is not there mean that there is none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.enclosing import Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView
from dptune.trace.columns import Columns
from dptune.trace.kernels import (
    BACKWARD_NAME,
    KERNEL_CATEGORIES,
    LAUNCH_CATEGORIES,
    OPTIMIZER_STEP_NAME,
    RANGE_CATEGORIES,
)

_GRADIENT = re.compile(r"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$")
_GRADIENT_ALONE = re.compile(r"torch::autograd::AccumulateGrad$")  # as torch 1.9 and earlier name it
_FORWARD = re.compile(
    r"aten::(linear|matmul|conv[123]d|convolution|layer_norm|batch_norm|embedding|gelu|relu|silu|dropout|"
    r"scaled_dot_product_attention)$"
)
_COMMUNICATES = re.compile(r"c10d|nccl|rccl|gloo:|mpi:|ucc:|hccl|xccl|oneccl|record_param_comms|horovod", re.IGNORECASE)
_COMPILED = re.compile(r"Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction$|triton_")
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

    def frames(self, pattern: re.Pattern[str]) -> Ints:
        """Rows of calls of Python functions in the steps whose name the pattern matches."""
        rows = self.columns.rows(PYTHON_CATEGORIES, pattern.match)
        return rows[self._in_steps(rows)]

    def calls(self, pattern: re.Pattern[str]) -> Ints:
        """Rows of calls of the device's runtime in the steps whose name the pattern matches."""
        rows = self.columns.rows(LAUNCH_CATEGORIES, pattern.match)
        return rows[self._in_steps(rows)]

    def _in_steps(self, rows: Ints) -> Mask:
        if not self.view.steps:
            return np.zeros(len(rows), dtype=np.bool_)
        start_ns = self.columns.ts_ns[rows]
        found: Mask = (start_ns >= self.view.steps[0].start_ns) & (start_ns < self.view.steps[-1].end_ns)
        return found

    def kernel_names(self, within: Ints | None = None) -> set[str]:
        """Names of the kernels of the steps, as far as a call inside one of these rows launched them."""
        columns, found = self.columns, set[str]()
        for device in self.view.devices:
            ran = device.operations
            if ran.on_cpu:
                continue
            chosen = (device.launched_in != OUTSIDE) & columns.of_category(KERNEL_CATEGORIES, ran.rows)
            if within is not None:
                launched = ran.launch != UNLAUNCHED
                chosen[~launched] = False
                chosen[launched] &= self.inside(ran.launch[launched], within)
            found |= {columns.names[name] for name in np.unique(columns.name_id[ran.rows[chosen]]).tolist()}
        return found

    def inside(self, rows: Ints, around: Ints) -> Mask:
        """Which rows begin inside one of the others, on the same thread."""
        return Ranges.of_rows(self.columns, around).hold(self.columns.thread[rows], self.columns.ts_ns[rows])

    @cached_property
    def gradients(self) -> Ints:
        """Rows in which autograd adds a gradient to its parameter: one for each, in every backward pass."""
        found = self.rows(_GRADIENT)
        return found if len(found) else self.rows(_GRADIENT_ALONE)

    def gradients_by_pass(self) -> list[int]:
        """How many gradients each backward pass adds, in order of time."""
        return [int(count) for count in np.unique(self.pass_of(self.gradients), return_counts=True)[1]]

    def usual_count(self, rows: Ints) -> int:
        """How many of these rows lie in a backward pass: the median over the passes that have any."""
        return round(float(np.median(np.unique(self.pass_of(rows), return_counts=True)[1])))

    def passes(self, synchronised_by: Ints) -> tuple[list[int], list[int]]:
        """The backward passes of each step, and those of them since whose begin one of these rows issued a reduction.

        FSDP reduces the last gradients after the last node of the pass.
        """
        steps, columns = self.view.steps, self.columns
        begin_ns = self.pass_starts_ns
        at = np.searchsorted([step.start_ns for step in steps], begin_ns, side="right") - 1
        kept = at >= 0
        since = np.searchsorted(begin_ns, columns.ts_ns[synchronised_by], side="right") - 1
        with_reductions = np.isin(np.arange(len(begin_ns)), since)
        every = np.bincount(at[kept], minlength=len(steps))
        return every.tolist(), np.bincount(at[kept & with_reductions], minlength=len(steps)).tolist()

    @cached_property
    def pass_starts_ns(self) -> Ints:
        """When each backward pass adds its first gradient, ascending."""
        _, first = np.unique(self.pass_of(self.gradients), return_index=True)
        found: Ints = self.columns.ts_ns[self.gradients[first]]
        return found

    def pass_of(self, rows: Ints) -> Ints:
        """A number for the backward pass of each row. Passes are apart where other operators begin between them."""
        return np.searchsorted(self._others_ns, self.columns.ts_ns[rows]).astype(np.int64)

    @cached_property
    def _others_ns(self) -> Ints:
        """When operators outside of backward passes begin, ascending."""
        columns = self.columns
        nodes = np.concatenate((self.backward, self.gradients))  # torch 1.9 and earlier name the latter otherwise
        passes = Intervals.union(columns.ts_ns[nodes], columns.ends(nodes))
        others = self.rows(_OPERATOR)
        others = others[~passes.hold(columns.ts_ns[others])]
        if not len(others):
            return columns.ts_ns[others]
        threads, counts = np.unique(columns.thread[others], return_counts=True)
        begin_ns: Ints = columns.ts_ns[others[columns.thread[others] == threads[np.argmax(counts)]]]
        return begin_ns  # of the thread that runs forward passes: a collective runs operators on threads of its own

    @cached_property
    def backward(self) -> Ints:
        """Rows of the nodes of backward passes."""
        rows = self.columns.rows(RANGE_CATEGORIES, BACKWARD_NAME.search)
        return rows[self._in_steps(rows)]

    @cached_property
    def forward(self) -> Ints:
        """Rows of operators that only forward passes have, also those that a checkpoint runs again."""
        return self.rows(_FORWARD)

    @cached_property
    def forwards(self) -> bool:
        """Whether operators of a forward pass were recorded."""
        return len(self.forward) > 0

    @cached_property
    def alone(self) -> bool:
        """Whether the process trains or runs a model, and no event except Python functions is of communication."""
        named = self.columns.rows(None, _COMMUNICATES.search)
        return (self.forwards or self.trains) and bool(self.columns.of_category(PYTHON_CATEGORIES, named).all())

    @cached_property
    def trains(self) -> bool:
        """Whether operators of a backward pass were recorded: then those of DDP and FSDP would have been, too."""
        return len(self.backward) > 0

    @cached_property
    def compiles(self) -> bool:
        """Whether a graph runs that torch.compile made."""
        return len(self.rows(_COMPILED)) > 0

    @cached_property
    def updates(self) -> Ints:
        """Rows of an optimizer's step()."""
        return self.rows(OPTIMIZER_STEP_NAME)
