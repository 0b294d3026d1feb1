"""Gradients that are sent only after the backward pass, although those of the last layers were ready before.

Counted are reductions that the host issues between the last gradient of a step and the end of its optimizer step, if
they send `LEAST_BYTES` in total: a loss, a metric or a norm is smaller. If the pass itself sends more, as with DDP, the
rest are not gradients. FSDP's are left out: only those of its last unit are issued there. In a compiled graph all
gradients become ready at its end; then no compute is left that could overlap them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dptune.measure.communication.calls import Call
from dptune.measure.communication.purposes import SHARDING
from dptune.measure.delayed.passes import BackwardPass, computed
from dptune.measure.delayed.sent import Delayed, Sent
from dptune.measure.views import DeviceView, RankView
from dptune.measured.collectives import REDUCING

LEAST_BYTES = 2**20  # the first bucket that DDP sends is as large


def after_backward(
    view: RankView, device: DeviceView, passes: Sequence[BackwardPass], of: Sent, calls: dict[int, Call]
) -> Iterator[Delayed]:
    """Per step, the reductions after its last backward pass; `calls` are the collectives by row."""
    issued_ns = view.columns.ts_ns[of.issued_by]
    reduces = np.isin(of.kinds, list(REDUCING)) & (of.purpose != SHARDING)
    sizes = np.array([calls[row].message_bytes or 0 for row in of.rows.tolist()], dtype=np.int64)
    for each in passes:
        of_step = reduces & (of.step == each.step)
        late = of_step & (issued_ns >= each.last_ns) & (issued_ns < each.until_ns)
        inside = of_step & (issued_ns >= each.first_ns) & (issued_ns < each.last_ns)
        if each.last and sizes[late].sum() >= max(LEAST_BYTES, sizes[inside].sum()):
            yield Delayed(np.flatnonzero(late), computed(view, device, each, each.first_ns))
