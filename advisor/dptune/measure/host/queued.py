"""Steps that began with work queued: they show how long a step takes where the profiler slows the host.

Recording begins while the host runs ahead of the device, as it does without the profiler. What is queued by then is
launched already, so the first traced steps may wait for no launch at all; once it is worked off the host, which the
profiler slows, cannot keep up, and every step waits for it.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np

from dptune.measure.device.phases import bounds
from dptune.measure.device.timeline import Timeline
from dptune.measure.host.queue import Launches
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.measured import QueuedSteps

_QUEUED_SHARE = 0.2  # of the launches of a step, outstanding as it begins
_NOT_WAITING, _WAITING = 0.01, 0.15  # share of a step that the device waits for launches


def queued_steps(view: RankView, device: DeviceView, spent: Timeline) -> QueuedSteps | None:
    """The first steps that began so, if all later ones wait for launches and take longer; None otherwise."""
    if device.operations.on_cpu or len(device.windows) < 2:
        return None
    begin, end = bounds(device.windows)
    waiting = spent.classes["launch_idle_ns"].lengths(begin, end) / (end - begin)
    outstanding = Launches.of(view.columns, device.operations).outstanding(begin)
    usual = (device.launched_in != OUTSIDE).sum() / len(device.windows)
    ahead = (waiting <= _NOT_WAITING) & (outstanding >= _QUEUED_SHARE * usual)
    first = sum(1 for _ in takewhile(bool, ahead.tolist()))
    took = (end - begin).tolist()
    if not 0 < first < len(took) or (waiting[first:] < _WAITING).any() or min(took[first:]) <= max(took[:first]):
        return None
    return QueuedSteps(
        numbers=[window.number for window in device.windows[:first]],
        queued=int(outstanding[0]),
        length_ns=round(float(np.median(took[:first]))),
        others_ns=[min(took[first:]), max(took[first:])],
    )
