"""Collectives of FullyShardedDataParallel (FSDP1) on a CPU, each with its unit, which the trace does not name.

Units are gathered in the order of the forward pass, and again, but for the root, in the reverse order before the
backward pass; their gradients are reduced in the reverse order. Each collective blocks the script's thread.
Source: torch 2.13, distributed/fsdp/_runtime_utils.py: `_post_forward_reshard`, `_prefetch_handle`, `_reduce_grad`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from dptune.measure.communication.calls import Call
from dptune.measure.communication.purposes import issuers
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.shard_units.events import UnitCall
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Missing
from dptune.trace.kernels import RANGE_CATEGORIES

# Ranges of prefetching are inside these, and none of these in another.
HOOKS = re.compile(r"FullyShardedDataParallel\._(?:pre_forward|pre_backward_hook|post_backward_hook)$")
_BACKWARD = re.compile(r"FullyShardedDataParallel\._(?:pre_backward_hook|post_backward_hook)$")


def flat_calls(view: RankView, device: DeviceView, calls: Mapping[int, Call], order: Sequence[str]) -> list[UnitCall]:
    """The collectives that units issue in the steps, in the order of issuing. `calls`: by the row of the operation.

    `order`: the units in the order of forward passes. Raises Missing where a pass has more collectives than units.
    """
    columns, operations = view.columns, device.operations
    (places,) = np.nonzero(np.isin(operations.rows, np.fromiter(calls, dtype=np.int64, count=len(calls))))
    by = issuers(view, device)[places]
    known = (by != UNLAUNCHED) & (device.launched_in[places] != OUTSIDE)
    places, by = places[known], by[known]
    thread, time_ns = columns.thread[by], columns.ts_ns[by]
    inside, backward = (
        Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, pattern.match)).at(thread, time_ns) != NOWHERE
        for pattern in (HOOKS, _BACKWARD)
    )
    found: list[UnitCall] = []
    numbers = {"gather": 0, "again": 0, "reduce": 0}
    for at in np.argsort(time_ns, kind="stable").tolist():
        if not inside[at]:
            continue
        call = calls[int(operations.rows[places[at]])]
        what = "reduce" if call.kind == "reduce_scatter" else "again" if backward[at] else "gather"
        if what == "gather" and (numbers["again"] or numbers["reduce"] or numbers["gather"] == len(order)):
            numbers = dict.fromkeys(numbers, 0)  # another pass
        if numbers[what] >= len(order):
            raise Missing("a pass of FullyShardedDataParallel has more collectives than units")
        unit = order[numbers[what]] if what == "gather" else order[-1 - numbers[what]]
        numbers[what] += 1
        step = int(device.launched_in[places[at]])
        direction = "backward" if backward[at] else "forward"
        found.append(UnitCall(int(places[at]), call, int(time_ns[at]), step, direction, unit))  # type: ignore[arg-type]
    return found
