"""The operators that compute on a CPU, and their own time: without what lies inside them."""

from __future__ import annotations

import numpy as np

from dptune.measure.device.operations import COLLECTIVE_CALL
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.intervals import Ints
from dptune.trace.columns import Columns
from dptune.trace.kernels import HOST_COLLECTIVE_PREFIXES, LOADER_NAME, OPERATOR_CATEGORIES, RANGE_CATEGORIES


def computing(columns: Columns, rows: Ints) -> Ints:
    """Of some operators those that lie in no loader and in no collective or call of one: as the account has compute."""
    others = _others(columns)
    inside = Ranges.of_rows(columns, others).hold(columns.thread[rows], columns.ts_ns[rows])
    return np.asarray(rows[~inside], dtype=np.int64)


def own_time(columns: Columns, rows: Ints) -> Ints:
    """For each operator its duration less that of the operators, collectives and loaders right inside it, int64 ns."""
    events = np.union1d(columns.rows(OPERATOR_CATEGORIES), _others(columns))
    events = events[np.isin(columns.thread[events], columns.thread[rows])]
    parents = Ranges.of_rows(columns, events).parents()
    within = np.zeros(len(events), dtype=np.int64)
    child = parents != NOWHERE
    np.add.at(within, parents[child], columns.dur_ns[events[child]])
    # Ranges that do not nest could leave less than nothing.
    self_ns = columns.dur_ns[rows] - within[np.searchsorted(events, rows)]
    return np.asarray(np.maximum(self_ns, 0), dtype=np.int64)


def _others(columns: Columns) -> Ints:
    return columns.rows(
        RANGE_CATEGORIES,
        lambda name: (
            name.startswith(HOST_COLLECTIVE_PREFIXES) or LOADER_NAME.match(name) or COLLECTIVE_CALL.match(name)
        ),
    )
