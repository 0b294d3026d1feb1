"""Operators of the forward pass that a backward pass runs again with gradients enabled, as a checkpoint does.

Only then do operators inside a backward pass have autograd's sequence numbers: formulas of derivatives call some of the
same operators without them.
"""

from __future__ import annotations

import re

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.by_function import taken_ns
from dptune.measure.host.operator_arguments import OperatorArguments
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Intervals

_OPERATOR = re.compile(r"(?!autograd::|torch::|c10d::)\w+::")


def recomputed_share(host: HostEvents) -> float | None:
    """The time of these operators as a share of the traced steps, on a GPU that of their kernels; None without any."""
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
    if not np.isin(forward, again).any():
        return None
    columns, steps = host.columns, len(host.view.steps)
    whole_ns = sum(window.length_ns for window in next((device.windows for device in host.view.devices), []))
    times = Intervals.union(columns.ts_ns[again], columns.ends(again))
    return min(1.0, steps * taken_ns(host.view, times, steps) / whole_ns) if whole_ns else 0.0
