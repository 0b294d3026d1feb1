"""Operators of a kind by the function of the script that calls them, with their backward pass.

The backward pass is found by autograd's sequence numbers in the detailed window. On a CPU the operators' own time
counts, on a GPU the time of the kernels that they launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from dptune.measure.device.phases import bounds
from dptune.measure.host.callers import callers
from dptune.measure.host.frames import FRAME
from dptune.measure.host.function_names import function_names
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.training import training
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import FunctionOperators
from dptune.trace.columns import Columns
from dptune.trace.kernels import Work

LEAST_SHARE = 0.01  # of a step, from which on a function is listed

Found = TypeVar("Found", bound=FunctionOperators)


@dataclass(frozen=True, eq=False)
class FunctionCost:
    """What a function spends in these operators in a step; `share`: with their backward pass, of the step.

    `frame`: the function as a frame of the trace has it.
    """

    frame: str
    name: str
    at: str
    rows: Ints
    steps: int
    rank: int
    cost_ns: int
    backward_ns: int
    share: float


def outside_backward(view: RankView, rows: Ints) -> Ints:
    """The operators that do not run in a backward pass: those of backward passes are found by node."""
    return rows[~training(view)["backward"].hold(view.columns.ts_ns[rows])]


def by_function(view: RankView, rows: Ints, untraced_ns: float | None) -> Iterator[FunctionCost]:
    """The cost of these operators by function of the script; nothing where no function is around them.

    `untraced_ns` is the step time of the rank without the profiler, where it is known.
    """
    columns = view.columns
    recorded = RecordedOperators.of(view) if len(rows) else None
    if recorded is None:
        return
    rows = recorded.covered(rows)
    names = function_names(view)
    calling: dict[str, list[int]] = defaultdict(list)
    frames: dict[str, str] = {}
    for row, caller in zip(rows.tolist(), callers(columns, rows), strict=True):
        if caller.function is not None:
            name = names.of(caller.function)
            calling[name].append(row)
            frames.setdefault(name, caller.function)
    step_ns = whole_step_ns(view, untraced_ns)
    for function, called in calling.items():
        match = FRAME.match(frames[function])
        if match is None:
            continue
        inside = np.array(called, dtype=np.int64)
        forward = Intervals.union(columns.ts_ns[inside], columns.ends(inside))
        cost_ns = taken_ns(view, forward, recorded.steps)
        backward_ns = taken_ns(view, recorded.backward_of(inside) or NOTHING, recorded.steps)
        yield FunctionCost(
            frame=frames[function],
            name=match["name"],
            at=f"{match['file']}:{match['line']}",
            rows=inside,
            steps=recorded.steps,
            rank=view.rank,
            cost_ns=cost_ns,
            backward_ns=backward_ns,
            share=min(1.0, (cost_ns + backward_ns) / step_ns),
        )


def longest_first(of_ranks: Iterable[Iterable[Found]]) -> list[Found]:
    """Each function once, on the rank where it spends most; without those that spend little.

    A rank may spend in a function at several places, as in slices of several sizes: the one that takes most counts.
    """
    ranks = [longest_by(found, lambda function: (function.name, function.at)) for found in of_ranks]
    worth = [function for function in over_ranks(ranks) if function.share >= LEAST_SHARE]
    return sorted(worth, key=lambda function: (-function.share, function.at))


def over_ranks(ranks: Sequence[Mapping[Hashable, Found]]) -> list[Found]:
    """Each once, on the rank where it spends most, with the share on that where it spends least."""
    found = []
    for key in dict.fromkeys(key for rank in ranks for key in rank):
        having = [rank[key] for rank in ranks if key in rank]
        least = min(function.share for function in having) if len(having) == len(ranks) else 0.0
        most = max(having, key=lambda function: function.share)
        found.append(most.model_copy(update={"least_share": least}))
    return found


def longest_by(found: Iterable[Found], key: Callable[[Found], Hashable]) -> dict[Hashable, Found]:
    """By what they have in common, those that spend most."""
    kept: dict[Hashable, Found] = {}
    for function in found:
        at = key(function)
        if at not in kept or kept[at].share < function.share:
            kept[at] = function
    return kept


def lengths_ns(columns: Columns, rows: Ints) -> Ints:
    """How long each of these rows takes."""
    return columns.ends(rows) - columns.ts_ns[rows]


def whole_step_ns(view: RankView, untraced_ns: float | None) -> float:
    """The step time that shares are of: without the profiler, where it is known.

    Where the devices of a traced step compute for longer than that, they were slower then, and so were the operators:
    shares are of this compute.
    """
    if untraced_ns is None:
        return median(step.length_ns for step in view.steps)
    computing = NOTHING
    for device in view.devices:
        computing |= device.operations.time[Work.COMPUTE]
    window = Intervals.union(*bounds(view.steps))
    return max(untraced_ns, (computing & window).total_ns / len(view.steps))


def taken_ns(view: RankView, calling: Intervals, steps: int) -> int:
    """What operators called in these times take in a step, of the first ones: on a GPU their kernels, on a CPU they."""
    window = Intervals.union(
        np.array([step.start_ns for step in view.steps[:steps]], dtype=np.int64),
        np.array([step.end_ns for step in view.steps[:steps]], dtype=np.int64),
    )
    calling = calling & window
    taken, on_device = NOTHING, False
    for device in view.devices:
        operations = device.operations
        if operations.on_cpu:
            continue
        on_device = True
        launched = (operations.launch != UNLAUNCHED) & (operations.work == Work.COMPUTE)
        kernels, launches = operations.rows[launched], operations.launch[launched]
        kernels = kernels[calling.hold(view.columns.ts_ns[launches])]
        taken |= Intervals.union(view.columns.ts_ns[kernels], view.columns.ends(kernels))
    return round((taken if on_device else calling).total_ns / steps)
