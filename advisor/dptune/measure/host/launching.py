"""How far the host runs ahead of the device: launch latency, and how many operations wait in the queue."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints, Mask
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.measured import LaunchFigures

NO_LAUNCHES = "no call that launched an operation was recorded: it computes on a CPU, or the trace lacks them"
_NONE_IDLE = "no operation was launched while the device had nothing to do"
_CLOCKS = "operations begin before the calls that launch them: the clocks of host and device are apart"


def launching(devices: Iterable[tuple[RankView, DeviceView]]) -> LaunchFigures | None:
    """Over all devices together; None where no launch was recorded, as on a CPU."""
    latencies, queues = [], []
    for view, device in devices:
        if device.operations.on_cpu:
            continue
        found = _device(view, device)
        if found is not None:
            latencies.append(found[0])
            queues.append(found[1])
    if not queues:
        return None
    latency, queue = np.concatenate(latencies), np.concatenate(queues)
    apart = len(latency) > 0 and np.median(latency) < 0
    latency_known = len(latency) > 0 and not apart
    figures = {
        "latency_median_ns": round(float(np.median(latency))) if latency_known else None,
        "latency_p90_ns": round(float(np.percentile(latency, 90))) if latency_known else None,
    }
    return LaunchFigures(
        operations=len(queue),
        **figures,
        queue_median=float(np.median(queue)),
        empty_share=len(latency) / len(queue),
        missing={name: _CLOCKS if apart else _NONE_IDLE for name, value in figures.items() if value is None},
    )


def _device(view: RankView, device: DeviceView) -> tuple[Ints, Ints] | None:
    """Latencies of the operations launched while the device was idle with an empty queue, and queue lengths of all."""
    columns, rows, launch = view.columns, device.operations.rows, device.operations.launch
    launched = launch != UNLAUNCHED
    others = rows[~launched]
    rows, launch, inside = rows[launched], launch[launched], device.launched_in[launched] != OUTSIDE
    if not inside.any():
        return None
    start, called, ends = columns.ts_ns[rows], columns.ts_ns[launch], columns.ends(launch)
    order = np.sort(start)
    # When an operation begins: those whose call is over, less those that have begun; at its call: whether any is left.
    queue = np.searchsorted(np.sort(ends), start, side="right") - np.searchsorted(order, start, side="right")
    begun = np.searchsorted(order, called, side="right")
    finished = np.searchsorted(np.sort(columns.ends(rows)), called, side="right")
    earlier = np.searchsorted(np.sort(called), called, side="left")
    idle = (begun == finished) & (earlier <= begun)
    idle &= _first_of_launch(launch, start)
    # One whose launch was not recorded may have been in the queue, as those launched before recording began.
    begun = np.searchsorted(np.sort(columns.ts_ns[others]), start, side="left")
    idle &= begun == np.searchsorted(np.sort(columns.ends(others)), called, side="right")
    return (start - called)[inside & idle], np.maximum(queue, 0)[inside]


def _first_of_launch(launch: Ints, start: Ints) -> Mask:
    """Which operations are the first of their launch: that of a CUDA graph has many."""
    order = np.lexsort((start, launch))
    _, first = np.unique(launch[order], return_index=True)
    found = np.zeros(len(launch), dtype=np.bool_)
    found[order[first]] = True
    return found
