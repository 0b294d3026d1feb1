"""Functions of the user that call the same module again and again in one run, as a loop over samples does.

Layers that a model calls one after the other are different modules. Calls with backward passes between them are left
out: the function may accumulate gradients over micro-batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dptune.measure.host.outermost import calls
from dptune.measure.host.stacks import Stacks
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import CodePhase

_MODULE = "nn.Module: "


@dataclass
class ModuleLoop:
    """Class of the module that is called most often, and how often in a run.

    `operators` are those of all such modules, by name, a list for each run. `alone`: whether each call is for
    one sample, or calls are for different numbers of rows.
    """

    module: str = ""
    repeats: float = 0.0
    alone: bool = False
    operators: dict[str, list[list[int]]] = field(default_factory=lambda: defaultdict(list))


def module_loops(
    view: RankView, stacks: Stacks, phases: Mapping[CodePhase, Intervals], least: int
) -> dict[str, ModuleLoop]:
    """By function, of those that call one module `least` times in one run."""
    columns = view.columns
    runs: dict[tuple[int, str], list[int]] = defaultdict(list)
    backward = phases["backward"]
    for row, function in stacks.modules:
        if function not in stacks.crossing:
            runs[function, columns.name(row)].append(row)
    runs = {key: rows for key, rows in runs.items() if len(rows) >= least}
    operators = np.array(stacks.outermost, dtype=np.int64)
    operators = operators[np.argsort(columns.ts_ns[operators], kind="stable")]
    found: dict[str, ModuleLoop] = defaultdict(ModuleLoop)
    for (function, module), rows in runs.items():
        calls_of_module: Ints = np.array(rows, dtype=np.int64)
        begin = columns.ts_ns[calls_of_module].min(keepdims=True)
        end = columns.ends(calls_of_module).max(keepdims=True)
        if view.host.loading.hold(begin)[0] or backward.lengths(begin, end)[0]:
            continue
        inside = _inside(view, calls_of_module, operators)
        name = stacks.function_names.of(columns.name(function))
        loop = found[name]
        by_name: dict[str, list[int]] = defaultdict(list)
        for row in inside.tolist():
            by_name[columns.name(row)].append(row)
        for operator, called in by_name.items():
            if len(called) >= least:
                loop.operators[operator].append(called)
        if len(rows) > loop.repeats:
            loop.repeats = float(len(rows))
            loop.module = module.removeprefix(_MODULE).rpartition("_")[0]
            loop.alone = _alone(view, rows, inside)
    return {name: loop for name, loop in found.items() if loop.operators}


def _inside(view: RankView, modules: Ints, operators: Ints) -> Ints:
    """The operators, in order of time, that run in these modules, which follow each other."""
    columns = view.columns
    modules = modules[np.argsort(columns.ts_ns[modules], kind="stable")]
    at = np.searchsorted(columns.ts_ns[modules], columns.ts_ns[operators], side="right") - 1
    within = (at >= 0) & (columns.ts_ns[operators] < columns.ends(modules)[at])
    found: Ints = operators[within & (columns.thread[operators] == columns.thread[modules[0]])]
    return found


def _alone(view: RankView, modules: Sequence[int], operators: Ints) -> bool:
    """Whether the first tensor of each call has one row, or calls have different numbers; False if it is not known."""
    columns = view.columns
    at = np.searchsorted(columns.ts_ns[operators], columns.ts_ns[np.array(sorted(modules))])
    first = [int(row) for row in operators[at[at < len(operators)]]]
    shapes = [call.shapes[0] for call in calls(view, first).values() if call.shapes and call.shapes[0]]
    rows = {shape[0] if len(shape) > 1 else 1 for shape in shapes}
    return rows == {1} or len(rows) > 1
