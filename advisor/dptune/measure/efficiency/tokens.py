"""Tokens of a step, where embeddings and attention of the trace show them.

A forward pass looks tokens up in an embedding by indices of shape batch x sequence. They are tokens if attention has as
many keys as the sequence is long. Smaller embeddings are those of positions, distances or token types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dptune.errors import TraceError
from dptune.measure.efficiency.formulas import Arguments, Shape
from dptune.measure.host.enclosing import Ranges
from dptune.measure.host.operator_arguments import operator_arguments
from dptune.measure.views import RankView
from dptune.runfile.record import RunRecord
from dptune.trace.kernels import BACKWARD_NAME, OPERATOR_CATEGORIES, RANGE_CATEGORIES

_EMBEDDING = "aten::embedding"
_SOFTMAX = frozenset({"aten::_softmax", "aten::softmax"})
_ATTENTION = "aten::_scaled_dot_product_"
_LEAST_VOCABULARY = 1000  # words
_MOST_TOKENS = 10**12  # of a step: more is no size of real tensors
_MOST = 20_000  # operators whose sizes are read


@dataclass(frozen=True)
class Tokens:
    """Tokens of one rank in a step; `shape`: batch x sequence, where all lookups of the step have the same."""

    per_step: int
    shape: tuple[int, int] | None


def given_per_step(record: RunRecord | None, tokens: int | None, samples: int | None) -> tuple[int | None, int | None]:
    """Tokens and samples of a step over all ranks: given now, else to `dptune profile`, if they can be right."""
    recorded = (None, None) if record is None else (record.tokens_per_step, record.samples_per_step)
    kept = [number if number is not None and 0 < number <= _MOST_TOKENS else None for number in recorded]
    return tokens or kept[0], samples or kept[1]


def tokens(view: RankView) -> Tokens | None:
    """Tokens of one rank; None if the trace does not show them, or if steps or vocabularies differ."""
    columns = view.columns
    rows = columns.rows(
        OPERATOR_CATEGORIES, lambda name: name == _EMBEDDING or name in _SOFTMAX or name.startswith(_ATTENTION)
    )
    back = columns.rows(RANGE_CATEGORIES, BACKWARD_NAME.search)
    rows = rows[~Ranges.of_rows(columns, back).hold(columns.thread[rows], columns.ts_ns[rows])]
    names = columns.names_of(rows)
    if _EMBEDDING not in names or len(rows) > _MOST:
        return None
    try:
        called = [Arguments.of(args) for args in operator_arguments(view.trace, rows)]
    except TraceError:
        return None
    keys = {length for name, each in zip(names, called, strict=True) if (length := _keys(name, each)) is not None}
    looked_up: dict[Shape, list[int]] = {}
    shapes: set[tuple[int, int]] = set()
    starts = np.array([step.start_ns for step in view.steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in view.steps], dtype=np.int64)
    at_step = np.searchsorted(starts, columns.ts_ns[rows], side="right") - 1
    for row, name, each, at in zip(rows.tolist(), names, called, at_step.tolist(), strict=True):
        weight, indices = each.shape(0), each.shape(1)
        if name != _EMBEDDING or at < 0 or columns.ts_ns[row] >= ends[at] or weight is None or indices is None:
            continue
        if len(indices) == 2 and indices[1] in keys and weight[0] >= _LEAST_VOCABULARY:
            looked_up.setdefault(weight, [0] * len(starts))[at] += math.prod(indices)
            shapes.add((indices[0], indices[1]))
    if len(looked_up) != 1:
        return None
    counts = set(looked_up.popitem()[1])
    per_step = counts.pop()
    if counts or not 0 < per_step <= _MOST_TOKENS:
        return None
    return Tokens(per_step, shapes.pop() if len(shapes) == 1 else None)


def _keys(name: str, called: Arguments) -> int | None:
    """The number of keys of attention."""
    if name == _EMBEDDING:
        return None
    shape = called.shape(1 if name.startswith(_ATTENTION) else 0)
    if shape is None or len(shape) < 3:
        return None
    return shape[-2] if name.startswith(_ATTENTION) else shape[-1]
