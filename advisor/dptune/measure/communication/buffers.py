"""How long the host takes to broadcast DDP's buffers before forward passes: flattening, sending, copying back.

Source: torch, `DistributedDataParallel._sync_buffers`, at the start of `forward`, and broadcast_coalesced in comm.hpp:
buffers are flattened by type, each flat tensor is broadcast, and its views are copied back into the buffers one by one.
It ends at the first operator or range that does something else, so broadcasts of the model itself are not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.intervals import Ints
from dptune.measure.views import RankView
from dptune.trace.kernels import RANGE_CATEGORIES

NO_BUFFERS = "no forward pass of a DDP module broadcasts buffers"
_FORWARD = re.compile(r"DistributedDataParallel\.forward$")
_FLATTENED = re.compile(r"aten::flatten_dense_tensors$")
_BROADCAST = re.compile(r"c10d::broadcast_$")
_PART = re.compile(
    r"DistributedDataParallel\.forward$|c10d::broadcast_$|record_param_comms$|(nccl|gloo|mpi|ucc):|"
    r"aten::((un)?flatten_dense_tensors|view|_?cat|narrow|slice|as_strided|copy_|_to_copy|to|clone|detach|split|"
    r"split_with_sizes|empty|empty_like|empty_strided|reshape|contiguous)$"
)


def buffer_sync_share(views: Sequence[RankView]) -> float | None:
    """The host's time for it / the steps, the mean over ranks; None where no rank sends buffers in its steps."""
    shares = [_spent_ns(view) / (view.steps[-1].end_ns - view.steps[0].start_ns) for view in views if view.steps]
    return float(np.mean(found)) if (found := [share for share in shares if share]) else None


def _spent_ns(view: RankView) -> int:
    """Of a time that a step begins or ends in, the part inside: steps that nothing marks may begin anywhere."""
    first, last = view.steps[0].start_ns, view.steps[-1].end_ns
    return sum(max(0, min(end, last) - max(begin, first)) for begin, end in _all_syncs(view))


def buffer_syncs(view: RankView) -> Iterator[tuple[int, int]]:
    """Begin and end, ns, of each time that DDP sends buffers before a forward pass in the steps."""
    if view.steps:
        first, last = view.steps[0].start_ns, view.steps[-1].end_ns
        yield from ((begin, end) for begin, end in _all_syncs(view) if first <= begin and end <= last)


def _all_syncs(view: RankView) -> Iterator[tuple[int, int]]:
    """Also those outside of the steps; none for a forward pass in which nothing else follows: its end is not known."""
    columns, thread = view.columns, view.columns.thread
    forwards = columns.rows(RANGE_CATEGORIES, _FORWARD.match)
    if not len(forwards):
        return
    forwards = forwards[Ranges.of_rows(columns, forwards).parents() == NOWHERE]
    rows = columns.rows(RANGE_CATEGORIES)
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    kinds = [rows[columns.named(pattern.match, rows)] for pattern in (_FLATTENED, _BROADCAST)]
    kinds.append(rows[~columns.named(_PART.match, rows)])
    for row in forwards.tolist():
        begin, end = int(columns.ts_ns[row]), int(columns.ts_ns[row] + columns.dur_ns[row])
        times = [columns.ts_ns[kind[thread[kind] == thread[row]]] for kind in kinds]
        flattened, sends, others = (_between(each, begin, end) for each in times)
        if not len(flattened) or not len(sends):
            continue
        after = others[others > flattened[0]]
        if len(after) and flattened[0] < sends[0] < after[0]:
            yield begin, int(after[0])


def _between(times_ns: Ints, begin: int, end: int) -> Ints:
    return times_ns[(times_ns >= begin) & (times_ns < end)]
