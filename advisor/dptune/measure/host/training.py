"""When the script's thread is in the training computation: modules, backward passes, optimizers, and losses.

Read from Python's stacks. A loss lies between the last forward pass before a backward pass and that. Where a backward
pass follows no module, as in a training that is written without modules, all since the last one is taken for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.enclosing import Ranges
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.once import once_for_each
from dptune.measure.views import RankView
from dptune.measured import CodePhase
from dptune.trace.columns import Columns
from dptune.trace.kernels import BACKWARD_NAME, RANGE_CATEGORIES

_FORWARD = re.compile(r"^DistributedDataParallel\.forward$|^nn\.Module: ")
_BACKWARD = re.compile(r"(^|/)torch/(_tensor|autograd/__init__)\.py\(\d+\): (backward|grad)$")
_UPDATE = re.compile(r"^Optimizer\.step#")
_STEP = re.compile(r"(^|/)torch/optim/\w+\.py\(\d+\): step$")
_OF_TORCH = re.compile(r"(^|/)torch/|^(?!.*\.py\(\d+\): )")  # or no Python function of a file
_OPTIMIZER = re.compile(r"^Optimizer\.|(^|/)torch/amp/grad_scaler\.py\(\d+\): ")


@once_for_each
def training(view: RankView) -> Mapping[CodePhase, Intervals]:
    """The time of each phase, disjoint. A loss is of the forward pass; closures that optimizers call are not theirs."""
    columns = view.columns
    named = columns.rows(RANGE_CATEGORIES | PYTHON_CATEGORIES)
    optimizer = _union(columns, named[columns.named(_OPTIMIZER.search, named)]) - _closures(columns)
    backward = _union(
        columns,
        np.concatenate((named[columns.named(_BACKWARD.search, named)], columns.rows(RANGE_CATEGORIES, _is_backward))),
    )
    backward -= optimizer
    forward = _union(columns, named[columns.named(_FORWARD.search, named)])
    updates = _union(columns, named[columns.named(_UPDATE.search, named)])
    forward |= _losses(view, forward, backward, updates)
    return {"optimizer": optimizer, "backward": backward, "forward": forward - backward - optimizer}


def backward_calls(columns: Columns) -> Ints:
    """Python's calls of backward passes and of `torch.autograd.grad`."""
    return columns.rows(PYTHON_CATEGORIES, lambda name: _BACKWARD.search(name) is not None)


def _closures(columns: Columns) -> Intervals:
    """What optimizers call that computes the gradients: Lightning passes such a closure to each step."""
    rows = columns.rows(PYTHON_CATEGORIES)
    steps = rows[columns.named(_STEP.search, rows)]
    if not len(steps):
        return Intervals.union(steps, steps)
    others = rows[columns.named(lambda name: _OF_TORCH.search(name) is None, rows)]
    kept = np.sort(np.concatenate((steps, others)))
    parents = Ranges.of_rows(columns, kept).parents()
    called = parents >= 0
    called[called] = np.isin(kept[parents[called]], steps)
    return _union(columns, kept[called & ~np.isin(kept, steps)])


def _is_backward(name: str) -> bool:
    return BACKWARD_NAME.search(name) is not None


def _union(columns: Columns, rows: Ints) -> Intervals:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))


def _losses(view: RankView, forward: Intervals, backward: Intervals, updates: Intervals) -> Intervals:
    """From the end of the last forward pass before each backward pass to that.

    Gradients may be zeroed and a loss scaled in between: only passes and updates of parameters end a micro-batch.
    """
    if not len(backward):
        return forward
    starts = [step.start_ns for step in view.steps]
    over = np.sort(np.concatenate((backward.end_ns, updates.end_ns, np.array(starts, dtype=np.int64))))
    since = []
    for begin in backward.start_ns.tolist():
        before = int(over[at]) if (at := int(np.searchsorted(over, begin, side="right")) - 1) >= 0 else begin
        last = int(np.searchsorted(forward.end_ns, begin, side="right")) - 1
        since.append(int(forward.end_ns[last]) if last >= 0 and forward.end_ns[last] > before else before)
    return Intervals.union(np.array(since, dtype=np.int64), backward.start_ns)
