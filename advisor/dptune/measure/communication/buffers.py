"""How long the host takes to broadcast DDP's buffers before forward passes: flattening, sending, copying back.

Source: torch, `DistributedDataParallel._sync_buffers`, at the begin of `forward`, and broadcast_coalesced in comm.hpp:
buffers are flattened by type, each flat tensor is broadcast, and its views are copied back into the buffers one by one.
It ends where the first operator begins that does something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dptune.measure.intervals import Ints
from dptune.measure.views import RankView
from dptune.trace.kernels import RANGE_CATEGORIES

NO_BUFFERS = "no forward pass of a DDP module broadcasts buffers"
_FORWARD = re.compile(r"DistributedDataParallel\.forward$")
_BROADCAST = re.compile(r"c10d::broadcast_$")
_OPERATOR = re.compile(r"aten::")
_MOVES = re.compile(
    r"aten::(un)?flatten_dense_tensors$|"
    r"aten::(view|cat|_cat|narrow|slice|as_strided|copy_|detach|split|split_with_sizes|empty|reshape|contiguous)$"
)


def buffer_sync_share(views: Sequence[RankView]) -> float | None:
    """The host's time for it / the steps, the mean over ranks; None where no rank sends buffers in its steps."""
    shares = [share for view in views if (share := _share(view)) is not None]
    return float(np.mean(shares)) if shares else None


def _share(view: RankView) -> float | None:
    if not view.steps:
        return None
    columns, thread = view.columns, view.columns.thread
    forwards = columns.rows(RANGE_CATEGORIES, _FORWARD.match)
    first, last = view.steps[0].start_ns, view.steps[-1].end_ns
    forwards = forwards[(columns.ts_ns[forwards] >= first) & (columns.ends(forwards) <= last)]
    sent = columns.rows(RANGE_CATEGORIES, _BROADCAST.match)
    others = columns.rows(RANGE_CATEGORIES, lambda name: _OPERATOR.match(name) and not _MOVES.match(name))
    spent = []
    for row in forwards.tolist():
        begin, end = int(columns.ts_ns[row]), int(columns.ts_ns[row] + columns.dur_ns[row])
        sends = _starts(columns.ts_ns[sent[thread[sent] == thread[row]]], begin, end)
        if not len(sends):
            continue
        then = _starts(columns.ts_ns[others[thread[others] == thread[row]]], int(sends[-1]), end)
        spent.append((int(then[0]) if len(then) else end) - begin)
    return sum(spent) / (last - first) if spent else None


def _starts(times_ns: Ints, begin: int, end: int) -> Ints:
    return np.sort(times_ns[(times_ns >= begin) & (times_ns < end)])
