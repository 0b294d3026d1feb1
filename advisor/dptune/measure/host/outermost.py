"""Tensor operators that no other one calls, in the order in which each thread of a step calls them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.by_function import outside_backward
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.operator_arguments import operator_arguments
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.intervals import Ints
from dptune.measure.views import RankView

# What makes a copy of the same values.
COPIES = frozenset("aten::" + name for name in ("to", "_to_copy", "contiguous", "clone", "copy_", "type_as", "float"))


@dataclass(frozen=True, eq=False)
class Call:
    """An operator with the sizes and strides of its tensors and its plain inputs, as far as the trace has them."""

    row: int
    name: str
    shapes: list[list[int]]
    values: list[str]
    strides: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Outermost:
    """Rows outside of backward passes, by thread and time."""

    view: RankView
    rows: Ints
    place: dict[int, int]

    @classmethod
    def of(cls, view: RankView, recorded: RecordedOperators) -> Outermost:
        """Of the steps whose operators were read."""
        columns = view.columns
        rows = outside_backward(view, recorded.rows)
        rows = rows[columns.named(lambda name: name.startswith("aten::"), rows)]
        rows = rows[np.lexsort((-columns.ends(rows), columns.ts_ns[rows], columns.thread[rows]))]
        ends = columns.ends(rows)
        kept, until, thread = [], 0, None
        for at, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
            if columns.thread[row] != thread or columns.ts_ns[row] >= until:
                thread, until = columns.thread[row], end
                kept.append(at)
        rows = rows[np.array(kept, dtype=np.int64)]
        return cls(view, rows, {row: at for at, row in enumerate(rows.tolist())})

    def around(self, rows: Sequence[int]) -> list[int | None]:
        """The outermost operator that each of these rows is in, or is itself; None for none."""
        columns, asked = self.view.columns, np.array(rows, dtype=np.int64)
        found = Ranges.of_rows(columns, self.rows).at(columns.thread[asked], columns.ts_ns[asked])
        return [None if at == NOWHERE else int(self.rows[at]) for at in found.tolist()]

    def after(self, row: int, count: int) -> list[int]:
        """The outermost operators of the same thread and step that follow an outermost one."""
        return self._near(row, range(self.place[row] + 1, min(self.place[row] + 1 + count, len(self.rows))))

    def before(self, row: int, count: int) -> list[int]:
        """Those before it, the nearest first."""
        return self._near(row, range(self.place[row] - 1, max(self.place[row] - 1 - count, -1), -1))

    def _near(self, row: int, places: range) -> list[int]:
        columns = self.view.columns
        rows = np.array([row, *self.rows[list(places)].tolist()], dtype=np.int64)
        step = np.searchsorted([step.start_ns for step in self.view.steps], columns.ts_ns[rows], side="right")
        same = (columns.thread[rows] == columns.thread[row]) & (step == step[0])
        return [int(near) for near in rows[same][1:]]


def calls(view: RankView, rows: Sequence[int]) -> dict[int, Call]:
    """What these operators were called with; empty where the trace cannot be read."""
    ordered = sorted(set(rows))
    try:
        found = operator_arguments(view.trace, np.array(ordered, dtype=np.int64))
    except TraceError:
        return {}
    return {
        row: Call(
            row,
            view.columns.name(row),
            _shapes(args.get("Input Dims")),
            _values(args.get("Concrete Inputs")),
            _shapes(args.get("Input Strides")),
        )
        for row, args in zip(ordered, found, strict=True)
    }


def integer(text: str) -> int | None:
    """The number that a plain input is; None where it is none."""
    try:
        return int(text)
    except ValueError:
        return None


def numel(shape: Sequence[int]) -> int:
    """Elements of a tensor."""
    return math.prod(shape)


def _shapes(dims: Any) -> list[list[int]]:
    """One for each input; that of no tensor is empty. The tensors of a list follow each other."""
    found: list[list[int]] = []
    for dim in dims if isinstance(dims, list) else []:
        if isinstance(dim, list) and dim and all(isinstance(part, list) for part in dim):
            found += _shapes(dim)
        else:
            whole = isinstance(dim, list) and all(type(length) is int for length in dim)
            found.append(list(dim) if whole else [])
    return found


def _values(values: Any) -> list[str]:
    return [value if isinstance(value, str) else "" for value in values] if isinstance(values, list) else []
