"""Gradients whose collectives the backward pass waits for before it continues with the next layer.

A collective of a gradient is issued inside autograd's AccumulateGrad node: by DDP's reducer, which does not wait, or by
a hook of the script. The pass waits for it where it runs on the stream that computes, or where the next operation on
that stream was launched before the collective ended and starts only then.

Where the host limits the step, overlapping gains nothing: an operation that was launched late does not start earlier.
So the gain is at most by how much the last operation of the step would end earlier if none waited for anything but its
launch and the operation before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dptune.measure.communication.purposes import GRADIENTS
from dptune.measure.delayed.passes import BackwardPass, compute_stream, computed, launched_in
from dptune.measure.delayed.sent import Delayed, Sent
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Mask
from dptune.measure.views import DeviceView, RankView
from dptune.trace.kernels import Work

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
            could_hide = computed(view, device, each, int(issued_ns[places[0]]))
            yield Delayed(places, could_hide, _most_ns(view, device, each))


def _most_ns(view: RankView, device: DeviceView, each: BackwardPass) -> int:
    """How much earlier the compute of a pass, and of the optimizer after the last, ends where nothing holds it up."""
    columns, operations = view.columns, device.operations
    called_ns = columns.ts_ns[operations.launch]
    until_ns = each.until_ns if each.last else each.last_ns
    chosen = (operations.work == Work.COMPUTE) & (operations.launch != UNLAUNCHED) & (called_ns < until_ns)
    chosen &= columns.queue[operations.rows] == compute_stream(view, device)
    before = operations.rows[chosen & (called_ns < each.first_ns)]
    chosen &= called_ns >= each.first_ns
    rows, earliest_ns = operations.rows[chosen], called_ns[chosen]
    if not len(rows):
        return 0
    order = np.argsort(earliest_ns, kind="stable")
    rows, earliest_ns = rows[order], earliest_ns[order]
    if len(before):
        earliest_ns = np.maximum(earliest_ns, columns.ends(before).max())
    length_ns = columns.dur_ns[rows]
    # each starts when it is launched, or when the one before has ended: the latest of all ways to the last one's end
    ends_ns = (earliest_ns + np.cumsum(length_ns[::-1])[::-1]).max()
    return max(0, int(columns.ends(rows).max() - ends_ns))


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
