"""The parts of the recorded steps of one rank whose gradients DistributedDataParallel exchanges, on a CPU.

There the script's own thread computes all of a step, so what it does is a sequence: waits for batches, the forward
pass, the backward pass with the moment each gradient is ready, the wait for the exchange, copies of buckets back into
gradients, the optimizer. Calls that start an exchange stand in the backward pass; they are taken out of it, and their
time is kept beside it, because other buckets make others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dptune.measure.intervals import Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import Missing
from dptune.trace.columns import Columns
from dptune.trace.kernels import RANGE_CATEGORIES
from dptune.whatif.model import Pass, RankStep

_EVALUATE = "autograd::engine::evaluate_function: "
_READY = f"{_EVALUATE}torch::autograd::AccumulateGrad"
_START = "c10d::allreduce_"
_COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_LOADER = "enumerate(DataLoader)#"
_FORWARD = "DistributedDataParallel.forward"


@dataclass(frozen=True)
class Timeline:
    """The steps of one rank as recorded, and the median time, ns, that starting one exchange takes on its thread.

    `copy_ns` is what copying buckets back takes in a pass, the median; 0 where gradients are views of the buckets.
    `operators` is how many a step runs, the median.
    """

    steps: tuple[RankStep, ...]
    start_ns: float
    copy_ns: float
    operators: float


def timeline(view: RankView) -> Timeline:
    """The parts of a rank's steps. Raises Missing where the trace does not tell them."""
    if view.no_steps:
        raise Missing(view.no_steps)
    columns = view.columns
    evaluated = columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(_EVALUATE))
    ready = columns.rows(RANGE_CATEGORIES, lambda name: name == _READY)
    if not len(ready):
        raise Missing("the trace does not say when gradients are ready: it has no AccumulateGrad of a backward pass")
    starts = columns.rows(None, lambda name: name == _START)
    copies = columns.rows(None, lambda name: name == _COPY)
    loader = columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(_LOADER))
    forward = columns.rows(RANGE_CATEGORIES, lambda name: name == _FORWARD)
    operators = columns.rows({"cpu_op"})
    found, copied, counts = [], [], []
    for step in view.steps:
        inside = [_within(columns, rows, step) for rows in (evaluated, ready, starts, copies, loader, forward)]
        if len(inside[0]):
            found.append(_step(columns, step, *inside))
            copied.append(float(columns.dur_ns[inside[3]].sum()))
            counts.append(len(_within(columns, operators, step)))
    if not found:
        raise Missing("no recorded step holds a backward pass")
    synchronised = max(sum(bool(one.ready_ns) for one in step.passes) for step in found)
    start_ns = float(np.median(columns.dur_ns[starts])) if len(starts) else 0.0
    return Timeline(tuple(found), start_ns, float(np.median(copied)) / max(1, synchronised), float(np.median(counts)))


def _within(columns: Columns, rows: Ints, step: Step) -> Ints:
    """Rows that begin in the step, in order of time."""
    ts = columns.ts_ns[rows]
    rows = rows[(ts >= step.start_ns) & (ts < step.end_ns)]
    return rows[np.argsort(columns.ts_ns[rows], kind="stable")]


def _step(
    columns: Columns, step: Step, evaluated: Ints, ready: Ints, starts: Ints, copies: Ints, loader: Ints, forward: Ints
) -> RankStep:
    ts, end = columns.ts_ns, columns.end_ns
    borders = _borders(ts[evaluated], ts[forward])
    passes = []
    before = step.start_ns
    for first, last in zip(borders, [*borders[1:], len(evaluated)], strict=True):
        own = evaluated[first:last]
        began, ended = int(ts[own[0]]), int(end[own].max())
        following = int(ts[evaluated[last]]) if last < len(evaluated) else step.end_ns
        started = starts[(ts[starts] >= began) & (ts[starts] < following)]
        accumulated = ready[(ts[ready] >= began) & (ts[ready] <= ended)]
        waited = loader[(ts[loader] >= before) & (ts[loader] < began)]
        loader_ns = int(columns.dur_ns[waited].sum())
        passes.append(
            Pass(
                loader_ns=loader_ns,
                forward_ns=began - before - loader_ns,
                backward_ns=ended - began - int(columns.dur_ns[started].sum()),
                ready_ns=_ready(end[accumulated] - began, end[started] - began, columns.dur_ns[started]),
            )
        )
        copied = copies[(ts[copies] >= began) & (ts[copies] < following)]
        before = max(ended, int(end[copied].max())) if len(copied) else ended
    return RankStep(tuple(passes), step.end_ns - before)


def _borders(evaluated_ns: Ints, forward_ns: Ints) -> list[int]:
    """Where each backward pass begins among the evaluated functions: the first, those after another forward pass."""
    after = np.searchsorted(evaluated_ns, forward_ns)
    return sorted({0, *(int(at) for at in after if 0 < at < len(evaluated_ns))})


def _ready(ready_ns: Ints, started_ns: Ints, took_ns: Ints) -> tuple[float, ...]:
    """When gradients would be ready if starting exchanges took no time; nothing where none was started."""
    if not len(started_ns):
        return ()
    before = np.concatenate(([0], np.cumsum(took_ns)))
    return tuple((ready_ns - before[np.searchsorted(started_ns, ready_ns, side="right")]).astype(float).tolist())
