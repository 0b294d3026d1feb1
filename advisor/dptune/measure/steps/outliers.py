"""Steps that took much longer than the others: compiling, trying algorithms, saving a checkpoint, a hiccup.

A step is one of them if it takes longer than the median of the others + 5 times the distance of their quartiles, and
longer than 1.5 times that median. The others, not all: of four steps the longest stretches the quartiles itself. It
takes at least four steps, and at most a third of them may be so: where more are, that is how the run is.

Calibrated on public traces: of those with four or more steps one of 425 ms among 210 to 220 is set aside, and none of
164 and 182 ms among 116 to 127 (a loader's jitter), nor any of runs whose steps spread evenly (29 from 124 to 176 ms).

Long steps that recur with a period are part of how the run is, as with a log every fifth step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations, takewhile
from statistics import median

import numpy as np

LEAST = 4
_QUARTILES_APART = 5
OF_MEDIAN = 1.5
_LEAST_TURNS = 3  # of a period


def outliers(lengths_ns: Sequence[int]) -> list[int]:
    """Which of the steps took much longer, by their place from 0, ascending."""
    order = np.argsort(lengths_ns, kind="stable").tolist()
    total = len(order)
    for many in range(total // 3 if total >= LEAST else 0, 0, -1):
        kept = [lengths_ns[at] for at in order[: total - many]]
        low, middle, high = np.percentile(kept, [25, 50, 75])
        limit = max(middle + _QUARTILES_APART * (high - low), OF_MEDIAN * middle)
        if kept[-1] <= limit < lengths_ns[order[total - many]]:
            return sorted(order[total - many :])
    return []


def recurring(lengths_ns: Mapping[int, int], long: Sequence[int]) -> list[int]:
    """Of long steps, by number, those that recur with a constant period and at least three times; ascending.

    `lengths_ns` are those of all steps. In no turn may such a step be short. Long steps that the run begins with are
    warm-up, and are among them only where they are no longer than the others.
    """
    numbers = sorted(lengths_ns)
    start = {
        number for number, _ in takewhile(lambda pair: pair[0] == pair[1], zip(numbers, sorted(long), strict=False))
    }
    return _recurring(lengths_ns, long, start) or _recurring(
        {number: ns for number, ns in lengths_ns.items() if number not in start}, [at for at in long if at not in start]
    )


def _recurring(lengths_ns: Mapping[int, int], long: Sequence[int], start: AbstractSet[int] = frozenset()) -> list[int]:
    by_period = sorted(combinations(sorted(set(long) & lengths_ns.keys()), 2), key=lambda pair: pair[1] - pair[0])
    for first, second in by_period:
        every = second - first
        turns = [number for number in range(first, max(lengths_ns) + 1, every) if number in lengths_ns]
        if len(turns) < _LEAST_TURNS or first - every >= min(lengths_ns) or not set(turns) <= set(long):
            continue
        later = [lengths_ns[number] for number in turns if number not in start]
        if later and all(lengths_ns[number] <= OF_MEDIAN * median(later) for number in start & set(turns)):
            return turns
    return []
