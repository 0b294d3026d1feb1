"""Functions of the user that call the same operators again and again: loops over samples, positions or elements.

Where a model calls its layers one after the other, each is a module, and its operators are called by that. A function
that calls one operator sixteen times by itself, in one run, does in Python what one operator could do for all. A loop
inside a library, such as the one over tokens that generates text, is not the function's own.

Cells of recurrent networks are called through modules, and each needs the state of the one before: a function that
calls sixteen in one run loops over positions. One that calls the same module again and again may loop over samples.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

import numpy as np
from numpy.typing import NDArray

from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.module_loops import module_loops
from dptune.measure.host.operator_compute import least_compute
from dptune.measure.host.pieces import Pieces
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.stacks import Stacks
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import CodePhase
from dptune.trace.columns import Columns
from dptune.trace.kernels import BACKWARD_NAME, OPERATOR_CATEGORIES, RANGE_CATEGORIES

LEAST_REPEATS = 16  # more than a function writes out line by line, or a model has heads or scales
LEAST_MODULE_REPEATS = 4  # of one module: fewer than LEAST_REPEATS say little alone
_NODE = re.compile(r"(\w+?)Backwards?\d*$")
_IN_PLACE = "copyslices"  # the node of any operator that writes into a part of a tensor
CELLS = frozenset({"aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"})
_TESTS = frozenset({"aten::isnan", "aten::isinf", "aten::isfinite"})
_READS = frozenset({"aten::is_nonzero", "aten::item"})  # a result that Python reads
AROUND_NS = 50_000  # that Python takes at most to call the next operator, with the profiler


@dataclass(frozen=True)
class Loop:
    """What one function repeats: host time in the median step, and calls in one run of it, of the longest operator.

    `crossing`: whether the function lasts longer than a step. `backward`: whether the backward pass may run the same
    number of nodes of these operators: it runs none for results that need no gradient. `computed_share` is an upper
    bound of the part of that time that is compute, `backward_share` the time of its backward pass / that time; None
    where the trace does not show them. `least_computed_ns` and `least_computed_share` are lower bounds of the compute
    of all operators from the first to the last repeated one: per step, and of their time; None where a device computes.
    `checks`: whether it tests tensors for NaN or infinity and reads the results. `module`: the class of what it calls
    each time, where that is a module, and `alone` whether for one sample, or for samples of different lengths.
    """

    phase: CodePhase
    operator: str
    repeats: float
    crossing: bool
    cost_ns: int
    backward: bool
    computed_share: float | None = None
    backward_share: float | None = None
    least_computed_ns: int | None = None
    least_computed_share: float | None = None
    checks: bool = False
    module: str = ""
    alone: bool = True


def loops(
    view: RankView,
    stacks: Stacks,
    found: Pieces,
    spent: NDArray[np.float64],
    phases: Mapping[CodePhase, Intervals],
) -> dict[str, Loop]:
    """By function the loops of a rank, but what the data loader runs. `spent` is the time of each piece, ns."""
    columns, direct, name_of = view.columns, stacks.direct, stacks.function_names.of
    starts = np.array([step.start_ns for step in view.steps], dtype=np.int64)
    ends = view.steps[-1].end_ns
    begins = columns.ts_ns[np.array([row for row, _, _ in direct], dtype=np.int64)]
    counts = (begins >= starts[0]) & (begins < ends) & ~view.host.loading.hold(begins)
    steps = np.searchsorted(starts, begins, side="right") - 1
    runs: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)  # by function's row, step and operator
    for (row, function, library_call), step, counted in zip(direct, steps.tolist(), counts.tolist(), strict=True):
        name = columns.name(row)
        if counted and BACKWARD_NAME.search(name) is None:  # a node that the backward pass runs
            runs[function, step, name].append((row, library_call))
    repeated: dict[str, dict[str, list[list[int]]]] = defaultdict(lambda: defaultdict(list))
    for (function, _, operator), called in runs.items():
        if _rounds(called) >= LEAST_REPEATS:
            repeated[name_of(columns.name(function))][operator].append([row for row, _ in called])
    for function, cells in _cells(view, stacks.functions):
        repeated[name_of(columns.name(function))][columns.name(cells[0])].append(cells)
    called_modules = module_loops(view, stacks, phases, LEAST_MODULE_REPEATS)
    over = {name_of(columns.name(row)) for row in stacks.crossing}
    recorded = RecordedOperators.of(view) if repeated or called_modules else None
    of_modules = {
        function: replace(
            _loop(view, loop.operators, function in over, found, spent, phases, recorded),
            repeats=loop.repeats,
            module=loop.module,
            alone=loop.alone,
        )
        for function, loop in called_modules.items()
    }
    of_operators = {
        function: _loop(view, operators, function in over, found, spent, phases, recorded)
        for function, operators in repeated.items()
    }
    return of_operators | {
        function: loop
        for function, loop in of_modules.items()
        if function not in of_operators
        or (loop.repeats >= LEAST_REPEATS and loop.cost_ns > of_operators[function].cost_ns)
    }


def _rounds(called: Sequence[tuple[int, int]]) -> int:
    """How often the function itself calls an operator, of rows and library calls: those of one such call are one."""
    libraries = {library_call for _, library_call in called} - {NOWHERE}
    return len(libraries) + sum(library_call == NOWHERE for _, library_call in called)


def _cells(view: RankView, functions: Ints) -> Iterator[tuple[int, list[int]]]:
    """The innermost functions that call sixteen cells of recurrent networks in one run, with these."""
    columns = view.columns
    rows = columns.rows(OPERATOR_CATEGORIES, CELLS.__contains__)
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    rows = rows[~view.host.loading.hold(columns.ts_ns[rows])]
    first = np.searchsorted(columns.ts_ns[rows], columns.ts_ns[functions])
    after = np.searchsorted(columns.ts_ns[rows], columns.ends(functions))
    looping = functions[after - first >= LEAST_REPEATS]
    around = Ranges.of_rows(columns, looping).at(columns.thread[rows], columns.ts_ns[rows])
    found: dict[int, list[int]] = defaultdict(list)
    for row, place in zip(rows.tolist(), around.tolist(), strict=True):
        if place != NOWHERE:
            found[int(looping[place])].append(row)
    yield from found.items()


def _loop(
    view: RankView,
    operators: Mapping[str, list[list[int]]],
    crossing: bool,
    found: Pieces,
    spent: NDArray[np.float64],
    phases: Mapping[CodePhase, Intervals],
    recorded: RecordedOperators | None,
) -> Loop:
    columns = view.columns
    rows = np.array([row for runs in operators.values() for run in runs for row in run], dtype=np.int64)
    begin, end = columns.ts_ns[rows], columns.ends(rows)
    inside = Intervals.union(begin, end)
    after = Intervals.union(begin, end + 1) - inside
    counted = np.where(inside.hold(found.start_ns), spent, np.minimum(spent, AROUND_NS) * after.hold(found.start_ns))
    by_step = np.bincount(found.step, weights=counted, minlength=len(view.steps))
    lengths: Counter[str] = Counter()
    for row, length in zip(rows.tolist(), (end - begin).tolist(), strict=True):
        lengths[columns.name(row)] += length
    longest = max(lengths, key=lambda operator: (operator in CELLS, lengths[operator]))
    where: Counter[CodePhase] = Counter()
    for phase, time in phases.items():
        where[phase] += int(time.hold(begin).sum())
    where["loop"] += len(rows) - sum(where.values())
    called = columns.rows(OPERATOR_CATEGORIES)
    names = {columns.name(row) for row in called[inside.hold(columns.ts_ns[called])].tolist()}
    runs = [run for of_operator in operators.values() for run in of_operator]
    spans = Intervals.union(columns.ts_ns[[run[0] for run in runs]], columns.ends(np.array([run[-1] for run in runs])))
    least = least_compute(view, spans, np.unique(columns.thread[rows]))
    return Loop(
        where.most_common(1)[0][0],
        longest,
        float(median(len(run) for run in operators[longest])),
        crossing,
        round(median_low(by_step.tolist())),
        _goes_back(names, _nodes(columns), len(rows) // 2),
        *_parts(view, recorded, rows, by_step.astype(np.float64), found, spent),
        least_computed_ns=None if least is None else round(least.computed_ns / len(view.steps)),
        least_computed_share=None if least is None else least.share,
        checks=not _TESTS.isdisjoint(operators) and not _READS.isdisjoint(names),
    )


def _nodes(columns: Columns) -> Counter[str]:
    """The number of nodes of each operator that the backward passes run, by its `_plain` name."""
    rows = columns.rows(OPERATOR_CATEGORIES | RANGE_CATEGORIES, lambda name: BACKWARD_NAME.search(name) is not None)
    found: Counter[str] = Counter()
    for row in rows.tolist():
        name = columns.name(row).rpartition(": ")[2]
        if _IN_PLACE in name.lower():
            found[_IN_PLACE] += 1
        elif match := _NODE.fullmatch(name):
            found[_plain(match[1])] += 1
    return found


def _goes_back(operators: Collection[str], nodes: Mapping[str, int], least: int) -> bool:
    """Whether at least `least` nodes of these operators run; True if the trace names no node."""
    if not nodes:
        return True
    plain = {_plain(name) for name in operators}
    if any(name.endswith("_") for name in operators):
        plain.add(_IN_PLACE)
    return sum(count for name, count in nodes.items() if name in plain) >= least


def _plain(name: str) -> str:
    return name.removeprefix("aten::").replace("_", "").lower()


def _parts(
    view: RankView,
    recorded: RecordedOperators | None,
    rows: Ints,
    cost_ns: NDArray[np.float64],
    found: Pieces,
    spent: NDArray[np.float64],
) -> tuple[float | None, float | None]:
    """The upper bound of the operators' compute, and their backward pass, as parts of the cost in the same steps."""
    total_ns = 0.0 if recorded is None else float(cost_ns[: recorded.steps].sum())
    if recorded is None or total_ns <= 0:
        return None, None
    covered = recorded.covered(rows)
    computed = min(1.0, recorded.computed_ns(covered) / total_ns) if recorded.elements.any() else None
    inside = recorded.backward_of(covered)
    if inside is None:
        return computed, None
    weights = spent * inside.hold(found.start_ns)
    backward_ns = np.bincount(found.step, weights=weights, minlength=len(view.steps))[: recorded.steps].sum()
    return computed, float(backward_ns) / total_ns
