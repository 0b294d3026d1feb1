"""Steps of optimizers that the script wrote itself, by the operators that they call.

Read from Python's stacks and the optimizer's range in the detailed window. Counted are outermost operators whose
innermost function is the script's: those that a class of torch or of an installed package calls are not, also where a
class of the script inherits from it. Nor is what a closure computes: Lightning runs the whole training step in one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dptune.measure.host.by_function import taken_ns, whole_step_ns
from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.enclosing import NOWHERE, Ranges, holding
from dptune.measure.host.frames import FRAME, is_scripts, is_users
from dptune.measure.host.outermost import Outermost
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.view_operators import VIEWS
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import OptimizerLoop
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES, RANGE_CATEGORIES

_STEP = re.compile(r"^Optimizer\.step#(?P<name>\w+)\.step$")
_OF_OPTIM = re.compile(r"(^|/)torch/optim/\w+\.py\(\d+\): ")
_OF_CLASS = re.compile(r"(^|/)torch/optim/(?!optimizer\.py|lr_scheduler\.py)\w+\.py\(\d+\): ")

_MODULE = "nn.Module: "


def optimizer_loops(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[OptimizerLoop]:
    """The optimizer classes of the script, each on the rank where its operators take most, longest first.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    kept: dict[str, OptimizerLoop] = {}
    for found in (loop for view in views if view.steps for loop in _of_rank(view, untraced_ns.get(view.rank))):
        if found.optimizer not in kept or kept[found.optimizer].share < found.share:
            kept[found.optimizer] = found
    return sorted(kept.values(), key=lambda loop: (-loop.share, loop.optimizer))


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[OptimizerLoop]:
    columns = view.columns
    ranges = columns.rows(RANGE_CATEGORIES | OPERATOR_CATEGORIES, lambda name: _STEP.match(name) is not None)
    recorded = RecordedOperators.of(view) if len(ranges) else None
    if recorded is None:
        return
    operators = Outermost.of(view, recorded).rows
    operators = operators[~columns.named(lambda name: name in VIEWS or name.startswith("aten::_has"), operators)]
    step = _innermost(columns, ranges, operators)
    function = _innermost(columns, _functions(columns), operators)
    inside = (step != NOWHERE) & (function != NOWHERE)
    inside[inside] = columns.ts_ns[function[inside]] >= columns.ts_ns[step[inside]]
    inside[inside] = columns.named(is_scripts, function[inside])
    within = _innermost(columns, columns.rows(PYTHON_CATEGORIES, _runs_closure), operators[inside])
    begun = np.append(columns.ts_ns, -1)[np.where(within == NOWHERE, len(columns.ts_ns), within)]
    inside[inside] = begun < columns.ts_ns[step[inside]]
    operators, step, function = operators[inside], step[inside], function[inside]
    names = np.array(columns.names_of(step), dtype=object)
    step_ns = whole_step_ns(view, untraced_ns)
    for name in sorted(set(names.tolist())):
        rows, places = operators[names == name], function[names == name]
        spent = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
        cost_ns = taken_ns(view, spent, recorded.steps)
        counts = Counter(columns.name(row).removeprefix("aten::") for row in rows.tolist())
        match = _STEP.match(name)
        yield OptimizerLoop(
            optimizer=match["name"] if match else name,
            functions=_places(columns, places),
            operators={each: calls / recorded.steps for each, calls in counts.most_common()},
            rank=view.rank,
            cost_ns=cost_ns,
            share=min(1.0, cost_ns / step_ns),
        )


def _functions(columns: Columns) -> Ints:
    """Those of the script, of installed packages and of torch's optimizers."""
    return columns.rows(PYTHON_CATEGORIES, lambda name: is_users(name) or _OF_OPTIM.search(name) is not None)


def _runs_closure(name: str) -> bool:
    """Whether what the script does inside is no step: a closure that torch's optimizer calls, or a module of it."""
    return _OF_CLASS.search(name) is not None or name.startswith(_MODULE)


def _innermost(columns: Columns, rows: Ints, operators: Ints) -> Ints:
    """The innermost of the rows around each operator, NOWHERE for none."""
    rows = holding(columns, rows, columns.ts_ns[operators])
    found = Ranges.of_rows(columns, rows).at(columns.thread[operators], columns.ts_ns[operators])
    return np.where(found == NOWHERE, NOWHERE, np.append(rows, NOWHERE)[found])


def _places(columns: Columns, functions: Ints) -> list[str]:
    """`name at file:line` of the functions that call the operators, the one with most calls first."""
    counts = Counter(columns.name(row) for row in functions.tolist())
    found = (FRAME.match(frame) for frame, _ in counts.most_common())
    return [f"{match['name']} at {match['file']}:{match['line']}" for match in found if match]
