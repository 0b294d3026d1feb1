"""Who made a call of the runtime: the operator, the nn.Module and the user's function around it.

Modules and functions are Python's, and stand in a trace only where it was recorded with stacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.operations import ENCLOSING
from dptune.measure.host.enclosing import NOWHERE, Ranges, holding
from dptune.measure.host.frames import is_users
from dptune.measure.intervals import Ints
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES

PYTHON_CATEGORIES = frozenset({"python_function"})
_MODULE = re.compile(r"^nn\.Module: (.+)$")


@dataclass(frozen=True)
class Caller:
    """What is around a call; None where nothing of the kind is."""

    operator: str | None
    module: str | None
    function: str | None


def has_stacks(columns: Columns) -> bool:
    """Whether the trace was recorded with Python's stacks."""
    return len(columns.rows(PYTHON_CATEGORIES)) > 0


def callers(columns: Columns, launch: Ints) -> list[Caller]:
    """For each call, by its row, who made it.

    The operator is the outermost of the `aten::` operators that lie directly around the call (`aten::item`, not the
    `aten::_local_scalar_dense` inside it), or the innermost of another kind.
    """
    operators = columns.rows(OPERATOR_CATEGORIES, lambda name: not ENCLOSING.match(name))
    caller_rows = (
        _operators(columns, holding(columns, operators, columns.ts_ns[launch]), launch),
        innermost(columns, columns.rows(PYTHON_CATEGORIES, _MODULE.match), launch),
        innermost(columns, columns.rows(PYTHON_CATEGORIES, is_users), launch),
    )
    return [
        Caller(
            None if operator == NOWHERE else columns.name(operator),
            None if module == NOWHERE else columns.name(module).removeprefix("nn.Module: "),
            None if function == NOWHERE else columns.name(function),
        )
        for operator, module, function in zip(*(rows.tolist() for rows in caller_rows), strict=True)
    ]


def innermost(columns: Columns, rows: Ints, launch: Ints) -> Ints:
    """For each call the innermost of these rows around it, NOWHERE where there is none."""
    rows = holding(columns, rows, columns.ts_ns[launch])
    found = Ranges.of_rows(columns, rows).at(columns.thread[launch], columns.ts_ns[launch])
    return np.where(found == NOWHERE, NOWHERE, np.append(rows, NOWHERE)[found])


def _operators(columns: Columns, rows: Ints, launch: Ints) -> Ints:
    ranges = Ranges.of_rows(columns, rows)
    found = ranges.at(columns.thread[launch], columns.ts_ns[launch])
    parents = ranges.parents()
    aten = columns.named(lambda name: name.startswith("aten::"), rows)
    places = np.arange(len(rows))
    outer = np.where((parents != NOWHERE) & aten & aten[parents], parents, places) if len(rows) else places
    while len(outer) and (outer[outer] != outer).any():
        outer = outer[outer]
    return np.where(found == NOWHERE, NOWHERE, np.append(rows[outer], NOWHERE)[found])
