"""How much compute slows while it runs beside communication: they share the device's memory and processors.

Compared is only what does the same work: the same operation at the same place in the step, on the same device, seen
with communication beside it in some steps and without in others. Other sizes have other places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dptune.measure.device.phases import DeviceTimeline
from dptune.measure.device.timeline import Timeline
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.trace.kernels import Work

Floats = NDArray[np.float64]
FEWEST_PAIRS = 30  # places seen both ways that a figure rests on at least
LEAST_SHARE = 0.01  # of all compute: the least time of the compared operations without communication
_BESIDE = 0.5  # of its duration has communication beside it; without is none of it


def slowdown(spent: Sequence[DeviceTimeline], compute_ns: int) -> tuple[float | str, int]:
    """Time of the compute seen beside communication / what it takes without, by medians of each place; how many places.

    The reason instead of the ratio if there are fewer than FEWEST_PAIRS places, or if their time without communication
    is less than LEAST_SHARE of all compute, `compute_ns`: a single disturbance would then dominate. Operations are
    weighted by how often they overlapped communication.
    """
    beside, without, pairs = 0.0, 0.0, 0
    for view, device, timeline in spent:
        place, duration, share = _places(view, device, timeline)
        hidden, clean = share >= _BESIDE, share == 0
        both = np.intersect1d(place[hidden], place[clean])
        compared = (hidden | clean) & np.isin(place, both)
        order = np.argsort(place[compared], kind="stable")
        cuts = np.searchsorted(place[compared][order], both[1:])
        for took, was_hidden in zip(
            np.split(duration[compared][order], cuts), np.split(hidden[compared][order], cuts), strict=True
        ):
            often = int(was_hidden.sum())
            if often:  # else the one piece of nothing
                beside += often * float(np.median(took[was_hidden]))
                without += often * float(np.median(took[~was_hidden]))
        pairs += len(both)
    if pairs < FEWEST_PAIRS or not without:
        ran = f"{pairs} {'operation' if pairs == 1 else 'operations'} of a step"
        return f"{ran} overlapped communication in some steps only; comparing needs at least {FEWEST_PAIRS}", pairs
    if without < LEAST_SHARE * compute_ns:
        compared = f"{100 * without / compute_ns:.1g} % of the compute"
        need = f"comparing needs at least {100 * LEAST_SHARE:g} %"
        return f"only {compared} overlapped communication in some steps and not in others; {need}", pairs
    return beside / without, pairs


def _places(view: RankView, device: DeviceView, timeline: Timeline) -> tuple[Ints, Ints, Floats]:
    """For each operation of compute its place in the step, its duration, and its share beside communication.

    A place is a name and which of that name in order of launching. Names that some steps run more often are left out.
    """
    operations, columns = device.operations, view.columns
    rows, launch, step = operations.rows, operations.launch, device.launched_in
    chosen = (operations.work == Work.COMPUTE) & (step != OUTSIDE) & (columns.dur_ns[rows] > 0)
    if operations.on_cpu:  # what encloses others does their work
        parents = Ranges.of_rows(columns, rows).parents()
        chosen[parents[parents != NOWHERE]] = False
    rows, launch, step = rows[chosen], launch[chosen], step[chosen]
    when = columns.ts_ns[np.where(launch == UNLAUNCHED, rows, launch)]
    order = np.lexsort((columns.ts_ns[rows], when, step, columns.name_id[rows]))
    rows, step = rows[order], step[order]
    name = columns.name_id[rows].astype(np.int64)
    key, first, count = np.unique(name * (len(view.steps) + 1) + step, return_index=True, return_counts=True)
    place = np.arange(len(rows)) - np.repeat(first, count)
    names, at, steps = np.unique(key // (len(view.steps) + 1), return_inverse=True, return_counts=True)
    least, most = np.full(len(names), len(rows) + 1), np.zeros(len(names), dtype=np.int64)
    np.minimum.at(least, at, count)
    np.maximum.at(most, at, count)
    steady = np.isin(name, names[(least == most) & (steps == len(np.unique(step)))])
    rows = rows[steady]
    start, end = columns.ts_ns[rows], columns.ends(rows)
    share = timeline.communication.lengths(start, end) / (end - start)
    return name[steady] * (int(place.max(initial=0)) + 1) + place[steady], end - start, share
