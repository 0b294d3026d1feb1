"""How far the device's clock is behind the host's, where operations begin before the calls that launch them.

Converting one to the other is off by up to 0.1 ms in public traces, and drifts. An operation that seems to begin before
its call would wait for no launch, and so for whatever ended before it, however long ago.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dptune.measure.device.critical import Walk
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints

_FARTHEST_NS = 1_000_000  # beyond, a call and an operation are no pair
_AROUND = 32  # launches before and after a moment that show how far the clocks are apart


def behind_ns(walk: Walk, time_ns: Ints) -> Ints:
    """By moment of the host, how much earlier it is by the device's clock, so that each call precedes what it launches.

    `time_ns` are in order, and still are when moved. Zeros where no operation begins before its call.
    """
    launched = walk.launch != UNLAUNCHED
    called = walk.columns.ts_ns[walk.launch[launched]]
    early = called - walk.begin[launched]
    early[(early < 0) | (early > _FARTHEST_NS)] = 0
    if not early.any():
        return np.zeros(len(time_ns), dtype=np.int64)
    order = np.argsort(called, kind="stable")
    around = sliding_window_view(np.pad(early[order], _AROUND), 2 * _AROUND + 1).max(axis=1)
    at = np.minimum(np.searchsorted(called[order], time_ns), len(around) - 1)
    return np.asarray(time_ns - np.maximum.accumulate(time_ns - around[at]), dtype=np.int64)
