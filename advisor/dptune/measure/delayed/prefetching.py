"""All-gathers of FSDP that a unit issues when it needs its parameters, after the previous unit's compute.

torch names the hooks: a gather of `FSDP::pre_forward` or `FullyShardedDataParallel._pre_forward` is the unit's own, one
in a range of prefetching was prefetched. Gathers that overlap the previous unit on the device are not delayed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dptune.measure.communication.purposes import SHARDING
from dptune.measure.delayed.sent import Delayed, Sent
from dptune.measure.host.enclosing import Ranges
from dptune.measure.intervals import Intervals, Mask
from dptune.measure.views import DeviceView, RankView
from dptune.trace.columns import Columns
from dptune.trace.kernels import RANGE_CATEGORIES, Work

_FLAT = r"FullyShardedDataParallel\._"
_AHEAD = re.compile(rf"FSDP::\w+_prefetch for |{_FLAT}(pre_forward|pre_backward|post_backward)_prefetch$")
_BACKWARD = re.compile(
    rf"FSDP::(pre_backward\b|backward_prefetch for )|{_FLAT}(pre_backward_hook|post_backward_prefetch)$"
)
_IN_HOOK = re.compile(rf"FSDP::(pre_forward|pre_backward)\b|{_FLAT}(pre_forward|pre_backward_hook)$")


def not_prefetched(view: RankView, device: DeviceView, of: Sent) -> Iterator[Delayed]:
    """Per pass, the gathers that units issued themselves, except the first, and the compute before each of them.

    None on a CPU, where a gather blocks the script.
    """
    columns, operations = view.columns, device.operations
    if operations.on_cpu:
        return
    in_own_hook = _inside(columns, _IN_HOOK, of) & ~_inside(columns, _AHEAD, of)
    backward = _inside(columns, _BACKWARD, of)
    rows = operations.rows[operations.work == Work.COMPUTE]
    compute = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
    places = np.flatnonzero((of.purpose == SHARDING) & np.isin(of.kinds, ("all_gather",)))
    passes: dict[tuple[int, bool], list[int]] = {}
    for place in places.tolist():
        passes.setdefault((int(of.step[place]), bool(backward[place])), []).append(place)
    for gathers in passes.values():
        pairs = [(before, place) for before, place in pairwise(gathers) if in_own_hook[place]]
        if pairs:
            before, late_places = np.array(pairs, dtype=np.int64).T
            between = Intervals.union(columns.ends(of.rows[before]), columns.ts_ns[of.rows[late_places]])
            yield Delayed(late_places, compute & between)


def _inside(columns: Columns, pattern: re.Pattern[str], of: Sent) -> Mask:
    ranges = Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, pattern.match))
    return ranges.hold(columns.thread[of.issued_by], columns.ts_ns[of.issued_by])
