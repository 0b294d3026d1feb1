"""Time in which torch.compile compiles in the traced steps, and how often it has compiled one function.

torch wraps each phase of a compilation in a range that ends in `(dynamo_timed)`, and calls compiled code in a range
`Torch-Compiled Region: F/N`: function F, compiled for the Nth time after the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dptune.measure.intervals import Intervals
from dptune.measure.views import RankView
from dptune.measured import CompilingFigures
from dptune.trace.kernels import RANGE_CATEGORIES

_COMPILES = re.compile(r" \(dynamo_timed\)$")
_REGION = re.compile(r"^Torch-Compiled Region: \d{1,9}/(\d{1,9})$")


def compiling(views: Sequence[RankView]) -> CompilingFigures | None:
    """Compile time of each step on the rank where it is longest, because the others wait; None without steps."""
    took: dict[int, int] = {}
    compiled: dict[int, int] = {}
    most = 0
    for view in views:
        columns = view.columns
        rows = columns.rows(RANGE_CATEGORIES, _COMPILES.search)
        time = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
        for step in view.steps:
            took[step.number] = max(took.get(step.number, 0), step.length_ns)
            inside = time.within(step.start_ns, step.end_ns).total_ns
            compiled[step.number] = max(compiled.get(step.number, 0), inside)
        regions = columns.rows(RANGE_CATEGORIES, _REGION.match)
        names = {columns.name(row) for row in regions.tolist()}
        most = max([most, *(1 + int(match[1]) for name in names if (match := _REGION.match(name)))])
    if not took:
        return None
    numbers = sorted(took)
    return CompilingFigures(
        steps_ns=[took[number] for number in numbers],
        compile_ns=[compiled[number] for number in numbers],
        compilations=most,
    )
