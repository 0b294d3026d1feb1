"""Operators of the forward pass that a backward pass runs again with gradients enabled, in a checkpoint or not.

Only then do operators inside a backward pass have autograd's sequence numbers: formulas of derivatives call some of the
same operators without them.

torch.utils.checkpoint reruns them in its own node, or where a node of torch reads its saved tensors. A custom
autograd.Function reruns them in its own node: torch ends the names of its nodes with a number, and not those of Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.by_function import taken_ns
from dptune.measure.host.enclosing import Ranges
from dptune.measure.host.operator_arguments import OperatorArguments
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Intervals

_OPERATOR = re.compile(r"(?!autograd::|torch::|c10d::)\w+::")


# Nodes in which a checkpoint reruns operators: that of torch (reentrant), of libraries by the same name, or any of C++.
_OF_CHECKPOINT = re.compile(r"(?:\bCheckpoint\w*Backward|Backward\d+)$")


@dataclass(frozen=True)
class Recomputed:
    """Operators that run again: their time / traced steps, and whether checkpoints rerun them, not other Functions."""

    share: float
    by_checkpoints: bool


def recomputed(host: HostEvents) -> Recomputed | None:
    """Operators of the forward pass that run again, on a GPU by the time of their kernels; None without any."""
    forward = host.forward[host.inside(host.forward, host.backward)]
    if not len(forward):
        return None
    rows = host.rows(_OPERATOR)
    rows = np.unique(rows[host.inside(rows, host.backward)])
    try:
        read = OperatorArguments.reading(host.view.trace, rows)
    except TraceError:
        return None
    again = rows[read.numbers[read.places(rows)] >= 0]
    forward = forward[np.isin(forward, again)]
    if not len(forward):
        return None
    columns, steps = host.columns, len(host.view.steps)
    whole_ns = sum(window.length_ns for window in next((device.windows for device in host.view.devices), []))
    times = Intervals.union(columns.ts_ns[again], columns.ends(again))
    share = min(1.0, steps * taken_ns(host.view, times, steps) / whole_ns) if whole_ns else 0.0
    at = Ranges.of_rows(columns, host.backward).at(columns.thread[forward], columns.ts_ns[forward])
    nodes = np.unique(columns.name_id[host.backward[at]]).tolist()
    return Recomputed(share, any(_OF_CHECKPOINT.search(columns.names[name]) for name in nodes))
