"""How much of the steps the operators of a CPU take by kind: matrix products, attention, convolutions, copies; and
those that read and write more than they compute.

Names are those of torch's dispatcher (aten/src/ATen/native/native_functions.yaml). Time is each operator's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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

# As the kinds of kernels that count as memory-bound on GPUs: elementwise and copies, reductions, normalization,
# indexing, pooling, softmax and loss, optimizers.
_MEMORY_BOUND = re.compile(
    r"^(?:aten|mkldnn)::_?(?:"
    r"add|sub|rsub|mul|div|true_divide|floor_divide|remainder|fmod|neg|abs|sgn|sign|reciprocal|pow|square|r?sqrt|exp2?|expm1"
    r"|log(?:1p|2|10)?|sin|cos|tan|tanh|sinh|cosh|atan2?|asin|acos|erf|erfc|sigmoid|log_sigmoid\w*|clamp(?:_min|_max)?|clip"
    r"|(?:leaky_|p|rr)?relu6?|threshold|gelu|silu|elu|celu|selu|mish|glu|hard(?:swish|tanh|sigmoid|shrink)|softplus|softshrink"
    r"|where|masked_(?:fill|scatter|select)|fill|zero|eq|ne|lt|le|gt|ge|(?:logical|bitwise)_(?:and|or|xor|not)|isnan|isinf"
    r"|isfinite|nan_to_num|round|floor|ceil|trunc|maximum|minimum|lerp|addcmul|addcdiv|(?:native_)?dropout|foreach_\w+"
    r"|fused_(?:sgd|adam|adamw|adagrad)|copy|to_copy|clone|cat|stack|repeat|flip|roll|tril|triu|\w*_pad\w*|upsample_\w+"
    r"|sum|nansum|mean|prod|max|min|amax|amin|aminmax|argmax|argmin|any|all|norm|linalg_vector_norm|var|var_mean|std|std_mean"
    r"|cumsum|cumprod|logsumexp|count_nonzero|(?:native_|cudnn_|mkldnn_)?(?:batch|layer|group|instance|rms)_norm"
    r"|index(?:_select|_put|_put_impl|_add|_copy|_fill)?|embedding(?:_dense|_bag)?|gather|scatter(?:_add|_reduce)?|take"
    r"|(?:slice|select)_backward|\w*pool[123]?d?\w*|(?:log_)?softmax|\w*(?:_loss|cross_entropy)\w*"
    r")(?:_backward(?:_data)?)?_?$"
)


def memory_bound_share(views: Sequence[RankView]) -> float | None:
    """Own time of operators that read and write more than they compute / the steps' windows, over all ranks."""
    whole = sum(window.length_ns for view in views for device in view.devices for window in device.windows)
    bound_ns = sum(_own_ns(view, {"memory-bound": _MEMORY_BOUND})["memory-bound"] for view in views)
    return min(1.0, bound_ns / whole) if whole else None


def operator_shares(views: Sequence[RankView]) -> dict[str, float]:
    """Kind -> own time of its operators / the steps' windows, over all ranks; of several threads it may exceed 1."""
    whole = sum(window.length_ns for view in views for device in view.devices for window in device.windows)
    by_view = [_own_ns(view, _KINDS) for view in views]
    total = {kind: sum(time_ns[kind] for time_ns in by_view) for kind in _KINDS}
    return {kind: time_ns / whole for kind, time_ns in total.items() if time_ns} if whole else {}


def _own_ns(view: RankView, kinds: Mapping[str, re.Pattern[str]]) -> dict[str, int]:
    """The own time of the operators of each kind in the steps of a rank."""
    total = dict.fromkeys(kinds, 0)
    for device in view.devices:
        operations = device.operations
        if not operations.on_cpu:
            continue
        compute = (operations.work == Work.COMPUTE) & (device.launched_in != OUTSIDE)
        rows = computing(view.columns, operations.rows[compute])
        time_ns = own_time(view.columns, rows)
        for kind, pattern in kinds.items():
            total[kind] += int(np.sum(time_ns[view.columns.named(pattern.match, rows)]))
    return total
