"""Gradients whose collectives the backward pass waits for before it continues with the next layer.

A collective of a gradient is issued inside autograd's AccumulateGrad node: by DDP's reducer, which does not wait, or by
a hook of the script. The pass waits for it where it runs on the stream that computes, or where the next operation on
that stream was launched before the collective ended and starts only then.

Where the host or the link limits the step, overlapping gains little: an operation that was launched late does not start
earlier, and the optimizer still waits for the last collective. So what is launched until the next backward pass is run
again: compute starts at its launch or when the compute before it ends, a collective also after the one before it.
Without collectives this gives a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dptune.measure.communication.purposes import GRADIENTS
from dptune.measure.delayed.passes import BackwardPass, compute_stream, computed, launched_in
from dptune.measure.delayed.sent import Delayed, Gains, Sent
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints, Mask
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
    for number, each in enumerate(passes):
        inside = of_gradients & (of.step == each.step) & (issued_ns >= each.first_ns) & (issued_ns < each.last_ns)
        places = np.flatnonzero(inside & _waited_for(view, device, each, of))
        if len(places):
            could_hide = computed(view, device, each, int(issued_ns[places[0]]))
            until_ns = passes[number + 1].first_ns if number + 1 < len(passes) else each.until_ns
            yield Delayed(places, could_hide, _gains(view, device, each, until_ns, of, np.flatnonzero(inside)))


def _gains(view: RankView, device: DeviceView, each: BackwardPass, until_ns: int, of: Sent, places: Ints) -> Gains:
    """How much earlier a pass ends, and the optimizer's step and the forward pass that follow until a moment."""
    columns, operations, stream = view.columns, device.operations, compute_stream(view, device)
    called_ns = columns.ts_ns[operations.launch]
    chosen = (operations.work == Work.COMPUTE) & (operations.launch != UNLAUNCHED) & (called_ns < until_ns)
    chosen &= columns.queue[operations.rows] == stream
    before = operations.rows[chosen & (called_ns < each.first_ns)]
    chosen &= called_ns >= each.first_ns
    computing, sending = operations.rows[chosen], of.rows[places]
    rows = np.concatenate((computing, sending))
    launched_ns = np.concatenate((called_ns[chosen], columns.ts_ns[of.issued_by[places]]))
    sends = np.arange(len(rows)) >= len(computing)
    order = np.argsort(launched_ns, kind="stable")
    base_ns = int(columns.ends(before).max()) if len(before) else 0
    computed_ns = alone_ns = sent_ns = base_ns
    for row, at_ns, is_sent in zip(
        rows[order].tolist(), launched_ns[order].tolist(), sends[order].tolist(), strict=True
    ):
        length_ns = int(columns.dur_ns[row])
        if is_sent:
            sent_ns = max(at_ns, computed_ns, sent_ns) + length_ns
            continue
        held_ns = sent_ns if at_ns >= each.last_ns else 0  # the optimizer needs all gradients
        computed_ns = max(at_ns, computed_ns, held_ns) + length_ns
        alone_ns = max(at_ns, alone_ns) + length_ns
    ends_ns = int(columns.ends(rows).max())
    compute_ends_ns = int(columns.ends(computing).max()) if len(computing) else ends_ns
    busy = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
    begins_ns = int(columns.ts_ns[rows].min())
    return Gains(
        likely_ns=max(0, ends_ns - max(computed_ns, sent_ns)),
        most_ns=max(0, compute_ends_ns - alone_ns),
        idle_ns=ends_ns - begins_ns - busy.total_ns,
    )


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
