"""Matrix decompositions by the function of the script that calls them, with their backward pass.

Read from the detailed window: operators of torch.linalg that factor or invert a matrix, and, by autograd's sequence
numbers, the nodes that differentiate them. On a CPU the operators' own time counts, on a GPU the time of the kernels
that they launch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from dptune.measure.host.callers import callers
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.pieces import alike
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.training import training
from dptune.measure.intervals import NOTHING, Intervals
from dptune.measure.views import RankView
from dptune.measured import Decomposition
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES, Work

LEAST_SHARE = 0.01  # of a step, from which on a function is listed
_NAME = re.compile(
    r"^aten::_?(?:linalg_)?(?P<name>svd|svdvals|eig|eigh|eigvals|eigvalsh|symeig|qr|inv|inverse|solve|cholesky|lstsq|"
    r"pinv|pinverse|matrix_exp|det|slogdet|logdet|lu|lu_factor|lu_solve|householder_product|geqrf|orgqr|ldl_factor|"
    r"ldl_solve|cholesky_inverse|cholesky_solve)(?:_ex|_helper)?$"
)
_FRAME = re.compile(r"^(?P<file>.+\.py)\((?P<line>\d+)\): (?P<name>.+)$")


def decompositions(views: Sequence[RankView], unprofiled_ns: Mapping[int, float]) -> list[Decomposition]:
    """The functions that spend most in decompositions, each on the rank where it spends most.

    `unprofiled_ns` is the step time of ranks without the profiler, where it is known.
    """
    found: dict[tuple[str, str], Decomposition] = {}
    for view in views:
        for one in _of_rank(view, unprofiled_ns.get(view.rank)):
            key = (one.name, one.at)
            if key not in found or found[key].share < one.share:
                found[key] = one
    worth = [one for one in found.values() if one.share >= LEAST_SHARE]
    return sorted(worth, key=lambda one: (-one.share, one.at))


def _of_rank(view: RankView, unprofiled_ns: float | None) -> list[Decomposition]:
    columns = view.columns
    rows = columns.rows(OPERATOR_CATEGORIES, lambda name: _NAME.match(name) is not None)
    rows = rows[~training(view)["backward"].hold(columns.ts_ns[rows])]  # those of backward passes are found by node
    recorded = RecordedOperators.of(view) if len(rows) else None
    if recorded is None:
        return []
    rows = recorded.covered(rows)
    by_function: dict[str, list[int]] = defaultdict(list)
    frames: dict[str, str] = {}
    for row, caller in zip(rows.tolist(), callers(columns, rows), strict=True):
        if caller.function is not None:
            by_function[alike(caller.function)].append(row)
            frames.setdefault(alike(caller.function), caller.function)
    step_ns = unprofiled_ns or median(step.length_ns for step in view.steps)
    found = []
    for function, calling in by_function.items():
        match = _FRAME.match(frames[function])
        if match is None:
            continue
        inside = np.array(calling, dtype=np.int64)
        own = Intervals.union(columns.ts_ns[inside], columns.ends(inside))
        cost_ns = _taken_ns(view, own, recorded.steps)
        backward_ns = _taken_ns(view, recorded.backward_of(inside) or NOTHING, recorded.steps)
        longest = _longest(columns, calling)
        found.append(
            Decomposition(
                name=match["name"],
                at=f"{match['file']}:{match['line']}",
                operator=longest,
                calls=sum(_operator(columns, row) == longest for row in calling) / recorded.steps,
                rank=view.rank,
                cost_ns=cost_ns,
                backward_ns=backward_ns,
                share=min(1.0, (cost_ns + backward_ns) / step_ns),
            )
        )
    return found


def _taken_ns(view: RankView, calling: Intervals, steps: int) -> int:
    """What operators called in these times take in a step: on a GPU their kernels, on a CPU the times themselves."""
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


def _operator(columns: Columns, row: int) -> str:
    match = _NAME.match(columns.name(row))
    return match["name"] if match else ""


def _longest(columns: Columns, rows: Sequence[int]) -> str:
    """The decomposition that takes most; of one inside another the outer."""
    lengths: Counter[str] = Counter()
    for row, length in zip(rows, (columns.ends(np.array(rows)) - columns.ts_ns[np.array(rows)]).tolist(), strict=True):
        lengths[_operator(columns, row)] += length
    return lengths.most_common(1)[0][0]
