"""Which functions of the user take host time in a step that nothing hides and that is not the training computation.

Read from Python's stacks. The training computation is what modules, backward passes and optimizers run, and what lies
between a forward pass and its backward pass, as the loss does. Of that only Python counts: the time of a function of
the user outside of operators and of torch's own functions. Outside of it everything counts: operators, file IO, Python.
Time in which a device computes, or the script waits for a device or another rank, counts nowhere.

The profiler slows each event that it records. What a step is longer than without it is taken off, in equal parts for
each event, so that a figure is one of the untraced step.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

import numpy as np
from numpy.typing import NDArray

from dptune.measure.host.broadcast_reductions import broadcast_reductions
from dptune.measure.host.callers import PYTHON_CATEGORIES, has_stacks
from dptune.measure.host.convolutions import long_convolutions
from dptune.measure.host.decompositions import decompositions
from dptune.measure.host.double_operators import double_functions
from dptune.measure.host.enclosing import NOWHERE
from dptune.measure.host.full_sorts import full_sorts
from dptune.measure.host.function_names import file_and_name
from dptune.measure.host.loops import Loop, loops
from dptune.measure.host.memory_bound import memory_bound_functions
from dptune.measure.host.norms import norm_use
from dptune.measure.host.one_hot_products import one_hot_products
from dptune.measure.host.output_losses import output_losses
from dptune.measure.host.pieces import Pieces, pieces
from dptune.measure.host.slice_gradients import slice_gradients
from dptune.measure.host.stacks import TRAINING, Site, Stacks
from dptune.measure.host.training import training
from dptune.measure.host.upsampled_convolutions import upsampled_convolutions
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import CodePhase, CodeSite, OperatorLoop, UserCodeFigures
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES, Work

NO_STACKS = "the traces hold no Python stacks: use `dptune profile --detailed 3`, or with_stack=True in torch.profiler"
LEAST_SHARE = 0.01  # of a step, from which on a function is listed
MOST = 10  # functions that are listed
MOST_EVENT_NS = 5_000  # what recording one event costs at most: 0.5 to 3 us on idle machines
_CLIPPING = re.compile(r"torch/nn/utils/clip_grad\.py\(\d+\): clip_grad_(norm|value)_$")
_PACKING = "aten::_pack_padded_sequence"


def user_code(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> UserCodeFigures | None:
    """The functions that take most, of these ranks; None where no trace has stacks.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    having_stacks = [view for view in views if view.steps and has_stacks(view.columns)]
    ranks = {view.rank: _Rank.of(view, untraced_ns.get(view.rank)) for view in having_stacks}
    if not ranks:
        return None
    sites = {site for rank in ranks.values() for site in rank.cost_ns}
    found = [_figures(site, ranks) for site in sites]
    found = sorted(
        (code_site for code_site in found if code_site.share >= LEAST_SHARE), key=lambda one: (-one.share, one.name)
    )
    return UserCodeFigures(
        ranks=sorted(ranks),
        steps=min(rank.steps for rank in ranks.values()),
        basis="untraced" if all(rank in untraced_ns for rank in ranks) else "traced",
        sites=found[:MOST],
        loops=_loops(ranks),
        decompositions=decompositions(having_stacks, untraced_ns),
        long_convolutions=long_convolutions(having_stacks, untraced_ns),
        output_losses=output_losses(having_stacks, untraced_ns),
        one_hot_products=one_hot_products(having_stacks, untraced_ns),
        full_sorts=full_sorts(having_stacks, untraced_ns),
        broadcast_reductions=broadcast_reductions(having_stacks, untraced_ns),
        memory_bound=memory_bound_functions(having_stacks),
        slice_gradients=slice_gradients(having_stacks, untraced_ns),
        upsampled_convolutions=upsampled_convolutions(having_stacks, untraced_ns),
        double_functions=double_functions(having_stacks, untraced_ns),
        clips=any(_clips(view.columns) for view in having_stacks),
        packs=any(len(view.columns.rows(OPERATOR_CATEGORIES, _PACKING.__eq__)) for view in having_stacks),
    )


def _clips(columns: Columns) -> bool:
    return len(columns.rows(PYTHON_CATEGORIES, lambda name: _CLIPPING.search(name) is not None)) > 0


@dataclass(frozen=True, eq=False)
class _Rank:
    """One rank: by site its cost in the median step, ns, and what takes most of it; `operator_shares` the part inside
    operators; `lines` the first line of each function; `calls` the operators that a site calls, in all steps and
    in their order; `loops` the functions that call operators in a loop.
    """

    steps: int
    step_ns: float
    cost_ns: dict[Site, int]
    mostly: dict[Site, str]
    operator_shares: dict[Site, float]
    lines: dict[str, int]
    calls: dict[Site, list[str]]
    loops: dict[str, Loop]
    runs: Counter[str]

    @classmethod
    def of(cls, view: RankView, untraced_ns: float | None) -> _Rank:
        columns = view.columns
        found = pieces(view, _hidden(view))
        phases = training(view)
        stacks = Stacks(view, found, {name: phases[name] for name in TRAINING})
        events = _events(columns, found)
        traced_ns = median(step.length_ns for step in view.steps)
        step_ns = traced_ns if untraced_ns is None else untraced_ns
        each_ns = min(MOST_EVENT_NS, max(0.0, traced_ns - step_ns) * len(view.steps) / max(1, int(events.sum())))
        spent = np.maximum(0.0, found.work_ns - each_ns * events)
        rows, in_phases, by_step = _by_row(view, found, spent, phases)
        counted, number = stacks.sites(rows, in_phases)
        total_ns = by_step.sum(axis=1)
        part_ns = np.bincount(number, weights=total_ns, minlength=len(counted)).tolist()
        parts: dict[Site, dict[str, float]] = defaultdict(dict)
        for each, ns in zip(counted, part_ns, strict=True):
            if each is not None:
                parts[each[0]][each[1]] = ns
        places = {site: at for at, site in enumerate(parts)}
        place = np.array([len(parts) if each is None else places[each[0]] for each in counted], dtype=np.int64)[number]
        steps_ns = np.zeros((len(parts) + 1, len(view.steps)))
        np.add.at(steps_ns, place, by_step)
        inside_ns = np.bincount(place, weights=total_ns * stacks.in_operators(rows), minlength=len(parts) + 1).tolist()
        cost_ns = {site: round(median_low(steps_ns[at].tolist())) for site, at in places.items()}
        mostly = {site: max(of_site, key=lambda part: of_site[part]) for site, of_site in parts.items()}
        shares = {site: inside_ns[places[site]] / sum(of_site.values()) for site, of_site in parts.items()}
        looping = loops(view, stacks, found, spent, phases)
        names, runs = stacks.function_names, Counter[str]()
        functions = np.bincount(columns.name_id[stacks.functions], minlength=len(columns.names))
        for name_id in np.flatnonzero(functions).tolist():
            runs[names.of(columns.names[name_id])] += int(functions[name_id])
        calls = stacks.calls(view)
        return cls(len(view.steps), step_ns, cost_ns, mostly, shares, stacks.lines, calls, looping, runs)


def _by_row(
    view: RankView, found: Pieces, spent: NDArray[np.float64], phases: Mapping[CodePhase, Intervals]
) -> tuple[Ints, list[CodePhase], NDArray[np.float64]]:
    """Rows and phases, ascending, and the time in each by step; without collections of garbage."""
    names: list[CodePhase] = ["loop", "input", *phases]
    phase = view.host.loading.hold(found.start_ns).astype(np.int64)
    for number, time in enumerate(phases.values(), 2):
        phase[time.hold(found.start_ns)] = number
    kept = (found.row != NOWHERE) & ~view.host.collecting.hold(found.start_ns) & (spent > 0)
    keys, place = np.unique(found.row[kept] * len(names) + phase[kept], return_inverse=True)
    by_step = np.zeros((len(keys), len(view.steps)))
    np.add.at(by_step, (place, found.step[kept]), spent[kept])
    rows, numbers = np.divmod(keys, len(names))
    return rows, [names[number] for number in numbers.tolist()], by_step


def _hidden(view: RankView) -> Intervals:
    """When a device computes beside the host, or the script waits for other ranks."""
    hidden = NOTHING
    for device in view.devices:
        time = device.operations.time
        if device.operations.on_cpu:
            hidden |= time[Work.COMMUNICATION] - time[Work.COMPUTE]
        else:
            for work in Work:
                hidden |= time[work]
    return hidden


def _events(columns: Columns, found: Pieces) -> Ints:
    """How many events begin in each piece."""
    rows = columns.rows(PYTHON_CATEGORIES | OPERATOR_CATEGORIES)
    threads = np.unique(columns.thread[found.row[found.row != NOWHERE]])
    at = np.searchsorted(found.start_ns, columns.ts_ns[rows[np.isin(columns.thread[rows], threads)]], side="right") - 1
    return np.bincount(at[at >= 0], minlength=len(found.start_ns)).astype(np.int64)


def _loops(ranks: Mapping[int, _Rank]) -> list[OperatorLoop]:
    """The loops that take most, each on the rank where it does."""
    found = []
    for function in {function for rank in ranks.values() for function in rank.loops}:
        having = {at: rank for at, rank in ranks.items() if function in rank.loops}
        shares = {at: rank.loops[function].cost_ns / rank.step_ns for at, rank in having.items()}
        most = max(shares, key=lambda at: shares[at])
        loop, line = ranks[most].loops[function], ranks[most].lines.get(function)
        file, name = file_and_name(function)
        if shares[most] >= LEAST_SHARE:
            found.append(
                OperatorLoop(
                    name=name,
                    at=f"{file}:{line}" if line else file,
                    phase=loop.phase,
                    operator=loop.operator,
                    repeats=loop.repeats,
                    crossing=loop.crossing,
                    backward=loop.backward,
                    rank=most,
                    cost_ns=loop.cost_ns,
                    share=min(1.0, shares[most]),
                    computed_share=loop.computed_share,
                    backward_share=loop.backward_share,
                    least_computed_ns=loop.least_computed_ns,
                    least_computed_share=loop.least_computed_share,
                    checks=loop.checks,
                    module=loop.module,
                    alone=loop.alone,
                )
            )
    return sorted(found, key=lambda operator_loop: (-operator_loop.share, operator_loop.name))[:MOST]


def _figures(site: Site, ranks: Mapping[int, _Rank]) -> CodeSite:
    shares = {number: rank.cost_ns[site] / rank.step_ns for number, rank in ranks.items() if site in rank.cost_ns}
    most = max(shares, key=lambda number: shares[number])
    file, name = file_and_name(site.function)
    line = ranks[most].lines.get(site.function)
    mostly = site.part or ranks[most].mostly[site]
    called = ranks[most].calls.get(site, [])
    counts = Counter(called)
    operator = max(counts, key=lambda name: counts[name], default=None)
    norms = norm_use(called)
    return CodeSite(
        name=name,
        at=f"{file}:{line}" if line else file,
        phase=site.phase,
        part=bool(site.part),
        mostly=mostly.partition(": ")[2] or mostly,
        library=site.library,
        rank=most,
        ranks=[number for number, share in sorted(shares.items()) if share >= shares[most] / 2],
        cost_ns=ranks[most].cost_ns[site],
        share=min(1.0, shares[most]),
        operator_share=ranks[most].operator_shares[site],
        runs=0.0 if site.part else ranks[most].runs[site.function] / ranks[most].steps,
        operator=operator,
        operator_calls=counts[operator] / ranks[most].steps if operator else 0.0,
        combined_norms=norms.combined,
        scales=norms.scaled,
    )
