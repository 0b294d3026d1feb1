"""Kernels of counted operators: time by kind of operator, and whether they ran on tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.kernel_kinds import MATRIX_WORK, kernel_kind
from dptune.measure.device.phases import bounds
from dptune.measure.device.precisions import precision
from dptune.measure.efficiency.counting import Operator
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import DeviceView, RankView
from dptune.measured import FlopKind
from dptune.trace.columns import Columns
from dptune.trace.kernels import Work


@dataclass(frozen=True, eq=False)
class KernelTime:
    """Time of operators that ran on the devices, by kind, ns; `counted_share` of the matrix kernels' time.

    `ran` are these operators. `on_matrix_units` has an entry for each: None if no kernel of it shows its precision.
    """

    ran: list[Operator]
    by_kind: dict[FlopKind, int]
    counted_share: float | None
    on_matrix_units: list[bool | None]


def kernel_time(view: RankView, steps: Sequence[Step], operators: Sequence[Operator]) -> KernelTime:
    """Time of the kernels that these steps launched; on a CPU the operators count as kernels.

    An operator without kernels ran on the CPU beside the devices, or did not compute: recomputation stops at the
    operator after the last tensor that it needs.
    """
    columns = view.columns
    rows = np.array([operator.row for operator in operators], dtype=np.int64)
    kinds = np.array([operator.kind for operator in operators], dtype=np.str_)
    counted_kinds = list(dict.fromkeys(operator.kind for operator in operators))
    if all(device.operations.on_cpu for device in view.devices):
        by_kind = {kind: _union_ns(columns, rows[kinds == kind]) for kind in counted_kinds}
        return KernelTime(list(operators), by_kind, None, [None] * len(operators))
    around = Ranges.of_rows(columns, rows)
    by_kind = dict.fromkeys(counted_kinds, 0)
    on_units, on_others, launched = (np.zeros(len(rows), dtype=np.int64) for _ in range(3))
    matrix_ns = counted_ns = 0
    for device in view.devices:
        kernels, launch = _launched(view, device, steps)
        owner = around.at(columns.thread[launch], columns.ts_ns[launch])
        owned, took = owner != NOWHERE, columns.dur_ns[kernels]
        for kind in counted_kinds:
            by_kind[kind] += _union_ns(columns, kernels[owned & (kinds[owner] == kind)])
        numbers, at = np.unique(columns.name_id[kernels], return_inverse=True)
        names = [columns.names[number] for number in numbers.tolist()]
        matrix = np.array([kernel_kind(name) in MATRIX_WORK for name in names], dtype=np.bool_)[at]
        precisions = np.array([precision(name) or "" for name in names], dtype=np.str_)[at]
        matrix_ns += int(took[matrix].sum())
        counted_ns += int(took[matrix & owned].sum())
        np.add.at(launched, owner[owned], 1)
        for total, wanted in ((on_units, "matrix units"), (on_others, "fp32")):
            chosen = owned & (precisions == wanted)
            np.add.at(total, owner[chosen], took[chosen])
    ran = np.flatnonzero(launched).tolist()
    units = [None if on_units[at] == on_others[at] == 0 else bool(on_units[at] > on_others[at]) for at in ran]
    return KernelTime([operators[at] for at in ran], by_kind, counted_ns / matrix_ns if matrix_ns else None, units)


def _union_ns(columns: Columns, rows: Ints) -> int:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows)).total_ns


def _launched(view: RankView, device: DeviceView, steps: Sequence[Step]) -> tuple[Ints, Ints]:
    """Compute kernels that were launched inside these steps, and the calls that launched them."""
    operations, starts = device.operations, view.columns.ts_ns
    known = (operations.work == Work.COMPUTE) & (operations.launch != UNLAUNCHED)
    rows, launch = operations.rows[known], operations.launch[known]
    inside = Intervals.union(*bounds(steps)).hold(starts[launch])
    return rows[inside], launch[inside]
