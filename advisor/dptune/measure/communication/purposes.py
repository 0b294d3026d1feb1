"""What each collective is for, by the ranges that the host was in as it issued it.

torch names those: FSDP's hooks are `FSDP::...` (fully_shard) or `FullyShardedDataParallel._...`, and DDP's reducer
issues a bucket from the hook of the gradient that fills it, inside autograd's `AccumulateGrad`. Metrics, barriers,
buffers and DTensors that the script gathers itself are issued in neither.
"""

from __future__ import annotations

import re
from typing import get_args

import numpy as np

from dptune.measure.communication.calls import asked
from dptune.measure.host.enclosing import Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Purpose
from dptune.trace.columns import Columns
from dptune.trace.kernels import RANGE_CATEGORIES

PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
GRADIENTS, SHARDING, OTHER = range(len(PURPOSES))
UNKNOWN = -1
NO_PURPOSE = "the trace does not show which operator issued it"

# `FullyShardedDataParallel.forward` holds the whole forward pass of the module.
_SHARDING = re.compile(r"FSDP::|FullyShardedDataParallel\.(?!forward)")
_GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def issuers(view: RankView, device: DeviceView) -> Ints:
    """The row of the host's call that issued each operation of a device, UNLAUNCHED where it is not known.

    On a CPU that is the operation itself; of a collective of gloo, the operator that asked for it.
    """
    operations = device.operations
    if not operations.on_cpu:
        return operations.launch
    operators = asked(view.columns)
    gloo = view.columns.named(lambda name: name.startswith("gloo:"), operations.rows)
    found = operations.rows.copy()
    found[gloo] = [operators.get(row, UNLAUNCHED) for row in operations.rows[gloo].tolist()]
    return found


def purposes(columns: Columns, issued_by: Ints) -> Ints:
    """The purpose of collectives that these calls issued, as index of PURPOSES; UNKNOWN where the call is not known."""
    thread, start_ns = columns.thread[issued_by], columns.ts_ns[issued_by]
    found = np.full(len(issued_by), OTHER, dtype=np.int64)
    gradients = Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, lambda name: name == _GRADIENT))
    found[gradients.hold(thread, start_ns)] = GRADIENTS
    found[Ranges.of_rows(columns, sharding_ranges(columns)).hold(thread, start_ns)] = SHARDING
    found[issued_by == UNLAUNCHED] = UNKNOWN
    return found


def sharding_ranges(columns: Columns) -> Ints:
    """The rows of the ranges that FSDP's hooks mark, on the host."""
    return columns.rows(RANGE_CATEGORIES, _SHARDING.match)
