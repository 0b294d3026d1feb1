"""Copies of averaged gradients out of DDP's buckets, one per parameter.

Source: torch, reducer.cpp, `finalize_bucket_dense`, unless gradients are views of the buckets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dptune.measure.communication.purposes import issuers
from dptune.measure.device.longest import longer, place
from dptune.measure.device.phases import DeviceTimeline, bounds
from dptune.measure.host.enclosing import Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals
from dptune.measured import BucketCopyFigures, Place
from dptune.trace.kernels import RANGE_CATEGORIES

NO_COPIES = "no gradient is copied out of DDP's buckets"
_COPY = re.compile(r"torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$")


def bucket_copies(spent: Sequence[DeviceTimeline]) -> BucketCopyFigures | None:
    """The copies in the steps of every rank; None if there are none."""
    copies, steps = 0, 0
    host_shares, device_shares = [], []
    longest: Place | None = None
    for view, device, _ in spent:
        columns = view.columns
        rows = columns.rows(RANGE_CATEGORIES, _COPY.match)
        begin, end = bounds(view.steps)
        spans = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
        longest = longer(longest, place(view.rank, spans, view.steps))
        copies += int(Intervals.union(begin, end).hold(columns.ts_ns[rows]).sum())
        steps += len(view.steps)
        host_shares.append(int(spans.lengths(begin, end).sum()) / max(1, int((end - begin).sum())))
        device_shares.append(0.0)
        if device.operations.on_cpu or not len(rows):
            continue
        by = issuers(view, device)
        inside = Ranges.of_rows(columns, rows).hold(columns.thread[by], columns.ts_ns[by])
        launched = device.operations.rows[inside & (by != UNLAUNCHED)]
        begin, end = bounds(device.windows)
        ran = Intervals.union(columns.ts_ns[launched], columns.ends(launched))
        device_shares[-1] = int(ran.lengths(begin, end).sum()) / max(1, int((end - begin).sum()))
    if not copies:
        return None
    return BucketCopyFigures.of(
        {"longest": (longest, "no copy has a duration")},
        copies_per_step=copies / steps,
        host_share=float(np.mean(host_shares)),
        device_share=float(np.mean(device_shares)),
    )
