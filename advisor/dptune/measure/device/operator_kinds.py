"""How much of the steps the operators of a CPU take by kind: matrix products, attention, convolutions, copies.

Names are those of torch's dispatcher (aten/src/ATen/native/native_functions.yaml). Time is each operator's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dptune.measure.device.operator_time import computing, own_time
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView
from dptune.trace.kernels import Work

_KINDS = {
    "matrix product": re.compile(
        r"^(?:aten|mkldnn)::_?(?:addmm|addmm_activation|mm|bmm|baddbmm|addbmm|addmv|mv|dot|matmul|(?:mkldnn_)?linear|linear_backward|linear_pointwise)$"
    ),
    "attention": re.compile(r"^aten::_?\w*(?:scaled_dot_product|flash_attention)\w*$"),
    "convolution": re.compile(r"^(?:aten|mkldnn)::_?\w*conv(?:olution|\d|_)\w*$"),
    "copy": re.compile(r"^aten::(?:copy_|_to_copy|to)$"),
}


def operator_shares(views: Sequence[RankView]) -> dict[str, float]:
    """Kind -> own time of its operators / the steps' windows, over all ranks; of several threads it may exceed 1."""
    whole = sum(window.length_ns for view in views for device in view.devices for window in device.windows)
    total = dict.fromkeys(_KINDS, 0)
    for view in views:
        for device in view.devices:
            operations = device.operations
            compute = (operations.work == Work.COMPUTE) & (device.launched_in != OUTSIDE)
            rows = computing(view.columns, operations.rows[compute])
            time_ns = own_time(view.columns, rows)
            for kind, pattern in _KINDS.items():
                total[kind] += int(np.sum(time_ns[view.columns.named(pattern.match, rows)]))
    return {kind: time_ns / whole for kind, time_ns in total.items() if time_ns} if whole else {}
