"""GPUs on which the same kernels take longer than on the other ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from dptune.measure.outliers.thresholds import upper_limit
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView
from dptune.trace.kernels import Work

# Of the median. GPUs of one model differ by less: on 8 H100 of one host (nanogpt_8xh100) the ratios are 0.98 to 1.01.
LEAST_TIMES = 1.05
_LEAST_RANKS = 4  # that run the same kernels as often
_MOST_NAMES = 50  # kernels compared, the longest first: the rest is little time

Times = Mapping[tuple[str, int], int]  # by name of a kernel and calls in the steps, the time of so many usual calls, ns


def kernel_times(view: RankView) -> Times:
    """Of the compute kernels of a rank in its steps: as many times the quick ones (the quartile) as there are.

    The quartile leaves out calls that were disturbed. Empty on a CPU.
    """
    if view.record is not None:
        return view.record.kernel_times
    found: dict[tuple[str, int], int] = {}
    for device in view.devices:
        operations, columns = device.operations, view.columns
        if operations.on_cpu:
            continue
        rows = operations.rows[(operations.work == Work.COMPUTE) & (device.launched_in != OUTSIDE)]
        names, durations = columns.name_id[rows], columns.dur_ns[rows]
        order = np.lexsort((durations, names))
        kinds, first, count = np.unique(names[order], return_index=True, return_counts=True)
        times = durations[order][first + (count - 1) // 4] * count
        for at in np.argsort(-times)[:_MOST_NAMES].tolist():
            key = columns.names[int(kinds[at])], int(count[at])
            found[key] = found.get(key, 0) + int(times[at])
    return found


def slow_devices(by_rank: Mapping[int, Times]) -> list[tuple[int, float]]:
    """Ranks with how many times as long their kernels take as the median rank's, the slowest first; outliers only.

    Ranks are compared by the kernels that both they and three more run, equally often.
    """
    groups: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for rank, times in by_rank.items():
        for key, time_ns in times.items():
            groups[key][rank] = time_ns
    own: dict[int, float] = defaultdict(float)
    usual: dict[int, float] = defaultdict(float)
    for of_ranks in groups.values():
        if len(of_ranks) < _LEAST_RANKS:
            continue
        middle = float(np.median(list(of_ranks.values())))
        for rank, time_ns in of_ranks.items():
            own[rank] += time_ns
            usual[rank] += middle
    ratios = {rank: own[rank] / usual[rank] for rank in own if usual[rank]}
    limit = upper_limit(np.array(list(ratios.values())), LEAST_TIMES)
    slow: Sequence[tuple[int, float]] = [(rank, times) for rank, times in ratios.items() if times >= limit]
    return sorted(slow, key=lambda pair: (-pair[1], pair[0]))
