"""Functions of the script whose own operators in forward passes read and write memory, with their backward pass.

Read from Python's stacks in the detailed window. A function's own operators are those that it calls without a layer of
torch or of another library in between. What torch computes in one operator cannot be written better: layers, matrix
products, convolutions, attention, activations, normalization, pooling, losses and lookups are left out. So is what runs
outside of forward passes and losses, which `user_code` looks at.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from dptune.measure.host.by_function import by_function, lengths_ns, longest_first, taken_ns, whole_step_ns
from dptune.measure.host.callers import PYTHON_CATEGORIES, innermost
from dptune.measure.host.frames import is_scripts, is_users
from dptune.measure.host.function_names import function_names
from dptune.measure.host.outermost import Outermost, calls, numel
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.training import backward_calls, training
from dptune.measure.host.view_operators import VIEWS
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import MemoryBoundFunction, OperatorCost

LEAST_SHARE = 0.05  # of a step, from which on a function is listed: no rule looks at less
_NAMED = 6
_LONG = 4  # times the median, from which on the rest of a call is waiting
# Names of torch's dispatcher without `aten::` (aten/src/ATen/native/native_functions.yaml), by word.
_ONE_OPERATOR = re.compile(
    r"^_?(addmm|mm|bmm|baddbmm|addmv|mv|dot|matmul|linear|einsum|tensordot|bilinear|.*conv|.*scaled_dot_product|.*attention"
    r"|lstm|gru|rnn|embedding|index|gather|scatter|take|one_hot"
    r"|.*relu|gelu|silu|elu|celu|selu|mish|hard(swish|tanh|sigmoid)|softplus|glu|.*softmax|sigmoid|tanh|.*dropout"
    r"|(layer|batch|group|instance|rms|local_response)_norm|.*pool|.*loss|.*cross_entropy|kl_div|cdist|fft|stft|istft)"
)


def memory_bound_functions(views: Sequence[RankView]) -> list[MemoryBoundFunction]:
    """The functions that spend most in them, each on the rank where it spends most.

    Shares are of the traced step, whose operators and whole length the profiler slows alike.
    """
    return longest_first(_of_rank(view) for view in views)


def _of_rank(view: RankView) -> Iterator[MemoryBoundFunction]:
    recorded = RecordedOperators.of(view)
    if recorded is None:
        return
    columns, step_ns = view.columns, whole_step_ns(view, None)
    rows = Outermost.of(view, recorded).rows
    rows = rows[training(view)["forward"].hold(columns.ts_ns[rows])]
    rows = _own(view, rows[columns.named(_is_memory_bound, rows)])
    runs = _runs(view, recorded.steps)
    names = function_names(view)
    loops = {names.of(columns.name(row)) for row in _around_backward(view).tolist()}
    for function in by_function(view, rows, None):
        interrupted_ns = _interrupted_ns(view, recorded, function.rows)
        share = function.share - interrupted_ns / step_ns
        if share < LEAST_SHARE:
            continue
        name = names.of(function.frame)
        by_operator: dict[str, list[int]] = defaultdict(list)
        for row in function.rows.tolist():
            by_operator[columns.name(row)].append(row)
        costs = [
            _operator(view, recorded, operator, np.array(called, dtype=np.int64), step_ns)
            for operator, called in by_operator.items()
        ]
        yield MemoryBoundFunction(
            name=function.name,
            at=function.at,
            runs=runs[name] / function.steps,
            calls_backward=name in loops,
            operators=sorted(costs, key=lambda cost: (-cost.share, cost.name))[:_NAMED],
            calls=len(function.rows) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns - interrupted_ns,
            backward_ns=function.backward_ns,
            share=share,
        )


def _is_memory_bound(name: str) -> bool:
    return name not in VIEWS and _ONE_OPERATOR.match(name.removeprefix("aten::")) is None


def _own(view: RankView, rows: Ints) -> Ints:
    """Those that a function of the script calls without a module or an installed package in between."""
    columns = view.columns
    function = innermost(columns, columns.rows(PYTHON_CATEGORIES, is_scripts), rows)
    installed = innermost(columns, columns.rows(PYTHON_CATEGORIES, _between), rows)
    return rows[(function >= 0) & ((installed < 0) | (columns.ts_ns[installed] <= columns.ts_ns[function]))]


def _between(name: str) -> bool:
    return name.startswith("nn.Module: ") or (is_users(name) and not is_scripts(name))


def _around_backward(view: RankView) -> Ints:
    """The functions of the script that call backward passes: training loops."""
    columns = view.columns
    found = innermost(columns, columns.rows(PYTHON_CATEGORIES, is_scripts), backward_calls(columns))
    return found[found >= 0]


def _runs(view: RankView, steps: int) -> Counter[str]:
    """How often each function of the script starts in the steps that were read."""
    columns = view.columns
    rows = columns.rows(PYTHON_CATEGORIES, is_scripts)
    starts = columns.ts_ns[rows]
    inside = rows[(starts >= view.steps[0].start_ns) & (starts < view.steps[steps - 1].end_ns)]
    return Counter(function_names(view).of(columns.name(row)) for row in inside.tolist())


def _interrupted_ns(view: RankView, recorded: RecordedOperators, rows: Ints) -> int:
    """What calls on a CPU take, in a step, beyond _LONG times the median of those of the same operator and size.

    They wait for a core then, or for memory; a call does as much as the others.
    """
    if not all(device.operations.on_cpu for device in view.devices):
        return 0
    columns = view.columns
    lengths, elements = lengths_ns(columns, rows), recorded.elements[np.searchsorted(recorded.rows, rows)]
    alike_calls: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row, length, count in zip(rows.tolist(), lengths.tolist(), elements.tolist(), strict=True):
        alike_calls[columns.name(row), count].append(length)
    beyond = (float(np.maximum(0, np.array(group) - _LONG * np.median(group)).sum()) for group in alike_calls.values())
    return round(sum(beyond) / recorded.steps)


def _operator(view: RankView, recorded: RecordedOperators, name: str, rows: Ints, step_ns: float) -> OperatorCost:
    columns = view.columns
    forward = taken_ns(view, Intervals.union(columns.ts_ns[rows], columns.ends(rows)), recorded.steps)
    forward -= _interrupted_ns(view, recorded, rows)
    backward = taken_ns(view, recorded.backward_of(rows) or NOTHING, recorded.steps)
    longest = int(rows[lengths_ns(columns, rows).argmax()])
    call = calls(view, [longest]).get(longest)
    return OperatorCost(
        name=name,
        calls=len(rows) / recorded.steps,
        size=max(call.shapes, key=numel, default=[]) if call is not None else [],
        share=min(1.0, (forward + backward) / step_ns),
    )
