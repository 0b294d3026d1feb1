"""Steps that took much longer than the others: compiling, trying algorithms, saving a checkpoint, a hiccup.

A step is one of them if it takes longer than the median of the others + 5 times the distance of their quartiles, and
longer than 1.5 times that median. The others, not all: of four steps the longest stretches the quartiles itself. It
takes at least four steps, and at most a third of them may be so: where more are, that is how the run is.

Calibrated on public traces: of those with four or more steps one of 425 ms among 210 to 220 is set aside, and none of
164 and 182 ms among 116 to 127 (a loader's jitter), nor any of runs whose steps spread evenly (29 from 124 to 176 ms).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEAST = 4
_QUARTILES_APART = 5
_OF_MEDIAN = 1.5


def outliers(lengths_ns: Sequence[int]) -> list[int]:
    """Which of the steps took much longer, by their place from 0, ascending."""
    order = np.argsort(lengths_ns, kind="stable").tolist()
    total = len(order)
    for many in range(total // 3 if total >= LEAST else 0, 0, -1):
        kept = [lengths_ns[at] for at in order[: total - many]]
        low, median, high = np.percentile(kept, [25, 50, 75])
        limit = max(median + _QUARTILES_APART * (high - low), _OF_MEDIAN * median)
        if kept[-1] <= limit < lengths_ns[order[total - many]]:
            return sorted(order[total - many :])
    return []
