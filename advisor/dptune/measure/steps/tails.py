"""The last step: it may lack the wait before the next, or hold the queue that earlier steps left.

The window of the last step ends with its last operation, for what comes next was not recorded. It lacks the time until
the first operation of a next step: the rest of the step on the host, and what other steps take from then on. Where the
device still worked off what was queued by then, it lacks nothing. A step is left out where the shares of a short trace
would be off by what it lacks.

Where the device lags behind the host and other streams run ahead, a window begins while the end of the step before is
still to run. All windows hold that end, and the last its own as well: together more than their steps launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

import numpy as np

from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Mask
from dptune.measure.views import DeviceView, RankView, busiest, without

_LEAST_WHOLE = 2  # windows: with fewer the last one is needed too
_OFF_SHARE = 0.01  # of all windows of a rank: what the last may lack


def cut_short(views: Sequence[RankView]) -> tuple[list[RankView], list[int]]:
    """The ranks without a last step that lacks its trailing wait, and the numbers of these steps, if any.

    Ranks may end with different steps. The mean over the ranks that end with a step says how much it lacks: shares are
    of all ranks, of which one alone may lack a wait that it makes the others lack next.
    """
    ending: dict[int, list[RankView]] = {}
    for view in views:
        if windows := busiest(view):
            ending.setdefault(windows[-1].number, []).append(view)
    cut = {last for last, ranks in ending.items() if mean(map(_lacking_share, ranks)) > _OFF_SHARE}
    return [
        without(rank_view, {windows[-1].number} & cut) if (windows := busiest(rank_view)) else rank_view
        for rank_view in views
    ], sorted(cut)


def _lacking_share(view: RankView) -> float:
    """What the last window lacks, as a share of all."""
    windows = busiest(view)
    if not windows[-1].open_ended or len(windows) <= _LEAST_WHOLE:
        return 0.0
    begun = {step.number: step.start_ns for step in view.steps}
    ended = {step.number: step.end_ns for step in view.steps}[windows[-1].number]
    usual = median(window.start_ns - begun[window.number] for window in windows[1:])
    return max(0.0, ended + usual - windows[-1].end_ns) / sum(window.length_ns for window in windows)


def queued_before_ns(views: Sequence[RankView]) -> int:
    """How long work launched before the first window runs in it: of the rank where it does so longest.

    The windows then last that much longer than what their steps launched takes. Nothing where the last window does not
    hold the end of the queue: windows that follow one another lose at one end what they gain at the other.
    """
    return max(map(_queued_ns, views), default=0)


def _queued_ns(view: RankView) -> int:
    device = max(view.devices, key=lambda candidate: len(candidate.windows), default=None)
    if device is None or not device.windows or not device.windows[-1].open_ended:
        return 0
    kept = device.record
    over_ns = queued_until_ns(view, device) if kept is None else kept.queued_ns[device.windows[0].start_ns]
    return max(0, min(over_ns, device.windows[-1].end_ns) - device.windows[0].start_ns)


def queued_until_ns(view: RankView, device: DeviceView) -> int:
    """When the last operation ends that was launched before the step of the device's first window."""
    before = device.operations.rows[_launched_before(view, device)]
    return int(view.columns.ends(before).max(initial=np.iinfo(np.int64).min))


def _launched_before(view: RankView, device: DeviceView) -> Mask:
    """Operations launched before the first window's step; without a known launch, those ahead of all others there."""
    ran, columns = device.operations, view.columns
    begin_ns = next(step.start_ns for step in view.steps if step.number == device.windows[0].number)
    known = ran.launch != UNLAUNCHED
    start_ns, queue = columns.ts_ns[ran.rows], columns.queue[ran.rows]
    before = known & (columns.ts_ns[ran.launch] < begin_ns)
    for stream in np.unique(queue[~known]).tolist():
        launched = start_ns[(queue == stream) & known & ~before]
        if len(launched):
            before |= (queue == stream) & ~known & (start_ns < launched.min())
    return np.asarray(before, dtype=np.bool_)
