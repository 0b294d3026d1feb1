"""Text generated without a cache: a module runs on the whole sequence again for each new position.

Read from the detailed window: calls of one module in a step, without gradients, whose input is longer by one each time.
With a cache of keys and values all calls but the first have an input of length one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.attention import rows_around
from dptune.measure.host.by_function import taken_ns
from dptune.measure.host.callers import PYTHON_CATEGORIES, has_stacks
from dptune.measure.host.frames import FRAME, is_scripts, library_of
from dptune.measure.host.operator_arguments import OperatorArguments
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import UncachedGeneration
from dptune.trace.kernels import OPERATOR_CATEGORIES

LEAST_CALLS = 8  # with an input longer by one each time: fewer are a few lengths that are tried
_MODULE = "nn.Module: "
_FIRST = frozenset({"aten::embedding", "aten::linear", "aten::layer_norm", "aten::rms_norm"})  # show the input's length
_MOST = 20_000  # calls of modules whose input is read


def uncached_generations(views: Sequence[RankView]) -> list[UncachedGeneration] | None:
    """The modules that generate without a cache, each on the rank where it takes most; None without stacks."""
    views = [view for view in views if view.steps and has_stacks(view.columns)]
    if not views:
        return None
    kept: dict[str, UncachedGeneration] = {}
    for found in (place for view in views for place in _of_rank(view)):
        if found.module not in kept or kept[found.module].share < found.share:
            kept[found.module] = found
    return sorted(kept.values(), key=lambda found: -found.share)


def _of_rank(view: RankView) -> Iterator[UncachedGeneration]:
    columns, starts = view.columns, np.array([step.start_ns for step in view.steps], dtype=np.int64)
    rows = columns.rows(PYTHON_CATEGORIES, lambda name: name.startswith(_MODULE))
    rows = rows[(columns.ts_ns[rows] >= starts[0]) & (columns.ends(rows) <= view.steps[-1].end_ns)]
    steps = np.searchsorted(starts, columns.ts_ns[rows], side="right") - 1
    calls: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
        calls[columns.name(row), step].append(row)
    many = {key: called for key, called in calls.items() if len(called) >= LEAST_CALLS}
    lengths = _lengths(view, np.array([row for called in many.values() for row in called][:_MOST], dtype=np.int64))
    runs: dict[str, list[list[int]]] = defaultdict(list)
    for (name, _), called in many.items():
        called.sort(key=lambda row: int(columns.ts_ns[row]))
        runs[name] += _growing(called, lengths)
    covered: list[Intervals] = []
    for name, growing in sorted(runs.items(), key=lambda each: -_time(view, each[1]).total_ns):
        time = _time(view, growing)
        if not growing or any(other.hold(time.start_ns[:1]).any() for other in covered):
            continue  # part of a module that is listed
        covered.append(time)
        counts = [[lengths[row] for row in run] for run in growing]
        needed = sum(run[0] + len(run) - 1 for run in counts) / sum(sum(run) for run in counts)
        step_ns = sum(step.length_ns for step in view.steps) / len(view.steps)
        cost_ns = taken_ns(view, time, len(view.steps))
        yield UncachedGeneration(
            **_place(view, growing[0][0]),
            module=re.sub(r"_\d+$", "", name.removeprefix(_MODULE)),
            calls=sum(map(len, counts)) / len(view.steps),
            shortest=counts[0][0],
            longest=counts[0][-1],
            rank=view.rank,
            cost_ns=cost_ns,
            share=min(1.0, cost_ns / step_ns),
            saved_share=min(1.0, cost_ns / step_ns) * (1 - needed),
        )


def _time(view: RankView, runs: Sequence[Sequence[int]]) -> Intervals:
    rows = np.array([row for run in runs for row in run], dtype=np.int64)
    return Intervals.union(view.columns.ts_ns[rows], view.columns.ends(rows))


def _growing(called: Sequence[int], lengths: Mapping[int, int]) -> Iterator[list[int]]:
    """Consecutive calls whose inputs are longer by one each time."""
    run = list(called[:1])
    for before, row in pairwise(called):
        if row in lengths and lengths[row] == lengths.get(before, 0) + 1:
            run.append(row)
            continue
        if len(run) >= LEAST_CALLS:
            yield run
        run = [row]
    if len(run) >= LEAST_CALLS:
        yield run


def _lengths(view: RankView, calls: Ints) -> dict[int, int]:
    """The length of the input of each of these calls, as its first operator shows it; without those with gradients."""
    columns = view.columns
    operators = columns.rows(OPERATOR_CATEGORIES, _FIRST.__contains__)
    operators = operators[np.argsort(columns.ts_ns[operators], kind="stable")]
    if not len(operators) or not len(calls):
        return {}
    at = np.searchsorted(columns.ts_ns[operators], columns.ts_ns[calls])
    first = operators[np.minimum(at, len(operators) - 1)]
    inside = (at < len(operators)) & (columns.ts_ns[first] < columns.ends(calls))
    calls, first = calls[inside], first[inside]
    try:
        read = OperatorArguments.reading(view.trace, first)
    except TraceError:
        return {}
    lengths = {}
    numbers = read.numbers[read.places(first)].tolist()
    for call, row, number, args in zip(calls.tolist(), first.tolist(), numbers, read.arguments(first), strict=True):
        length = _length(columns.name(row), args)
        if length is not None and number < 0:  # a number shows gradients
            lengths[call] = length
    return lengths


def _length(name: str, args: Mapping[str, Any]) -> int | None:
    """Of the indices of an embedding the last dimension, of features the one before."""
    shapes = args.get("Input Dims")
    at, least, dimension = (1, 1, -1) if name == "aten::embedding" else (0, 3, -2)
    shape = shapes[at] if isinstance(shapes, list) and len(shapes) > at else None
    if not isinstance(shape, list) or len(shape) < least or not all(type(size) is int for size in shape):
        return None
    return int(shape[dimension])


def _place(view: RankView, row: int) -> dict[str, str]:
    """The innermost function of the script around a call, and the function of a library that it calls, if any."""
    around = rows_around(view.columns, row)
    frames = [view.columns.name(each) for each in around]
    scripts = [at for at, frame in enumerate(frames) if is_scripts(frame)]
    called = around[scripts[-1] + 1 :] if scripts else []
    of_library = next((each for each in called if library_of(view.columns, each)), None)
    script = FRAME.match(frames[scripts[-1]]) if scripts else None
    function = FRAME.match(view.columns.name(of_library)) if of_library is not None else None
    return {
        "name": script["name"] if script else "",
        "at": f"{script['file']}:{script['line']}" if script else "",
        "library": library_of(view.columns, of_library) if of_library is not None else "",
        "through": function["name"] if function else "",
    }
