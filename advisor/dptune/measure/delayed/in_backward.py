"""Gradients whose collectives the backward pass waits for before it continues with the next layer.

A collective of a gradient is issued inside autograd's AccumulateGrad node: by DDP's reducer, which does not wait, or by
a hook of the script. The pass waits for it where it runs on the stream that computes, or where the next operation on
that stream was launched before the collective ended and starts only then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dptune.measure.communication.purposes import GRADIENTS
from dptune.measure.delayed.passes import BackwardPass, compute_stream, computed, launched_in
from dptune.measure.delayed.sent import Delayed, Sent
from dptune.measure.intervals import Mask
from dptune.measure.views import DeviceView, RankView

_SLACK_NS = 50_000  # between the end of a collective and the start of what waited for it


def in_backward(view: RankView, device: DeviceView, passes: Sequence[BackwardPass], of: Sent) -> Iterator[Delayed]:
    """Per backward pass, the collectives of gradients that it waits for; none on a CPU, which has no streams."""
    columns = view.columns
    issued_ns = columns.ts_ns[of.issued_by]
    of_gradients = of.purpose == GRADIENTS
    if device.operations.on_cpu or not of_gradients.any():
        return
    for each in passes:
        inside = of_gradients & (of.step == each.step) & (issued_ns >= each.first_ns) & (issued_ns < each.last_ns)
        places = np.flatnonzero(inside & _waited_for(view, device, each, of))
        if len(places):
            yield Delayed(places, computed(view, device, each, int(issued_ns[places[0]])))


def _waited_for(view: RankView, device: DeviceView, each: BackwardPass, of: Sent) -> Mask:
    columns, operations, stream = view.columns, device.operations, compute_stream(view, device)
    chosen = launched_in(view, device, each.thread, each.first_ns, each.last_ns)
    rows, launch = operations.rows[chosen], operations.launch[chosen]
    computing = columns.queue[rows] == stream
    rows, launch = rows[computing], launch[computing]
    order = np.argsort(columns.ts_ns[launch], kind="stable")
    rows, launched_ns = rows[order], columns.ts_ns[launch[order]]
    found: Mask = columns.queue[of.rows] == stream
    if not len(rows):
        return found
    end_ns = columns.ends(of.rows)
    after = np.searchsorted(launched_ns, columns.ts_ns[of.issued_by], side="right")
    followed = after < len(rows)
    next_row = rows[np.minimum(after, len(rows) - 1)]
    before_end_ns = np.where(after > 0, columns.ends(rows[np.maximum(after - 1, 0)]), 0)
    start_ns = columns.ts_ns[next_row]
    queued = launched_ns[np.minimum(after, len(rows) - 1)] < end_ns
    held: Mask = queued & (start_ns >= end_ns) & (start_ns < end_ns + _SLACK_NS) & (before_end_ns < end_ns)
    return np.asarray(found | (followed & held), dtype=np.bool_)
