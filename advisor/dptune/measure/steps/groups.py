"""Groups of alternating steps, as with an optimizer every second step: their difference is a pattern, not noise.

Traced steps take turns by what they launch: steps a period apart launch the same, neighbours do not. Of steps without
the profiler only the time is known: they take turns where steps a period apart take the same time and others do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

import numpy as np

from dptune.measure.intervals import Ints
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView, busiest
from dptune.measured import StepGroup

_ALIKE = 0.97  # of the operations of steps a period apart; real steps that launch the same have 0.98 and more
_UNLIKE = 0.02  # less alike are neighbours of two groups
_LONGEST = 8  # period of times
_LEAST_TURNS = 4  # of a period, for times alone to show it
_TIGHT_SHARE = 0.03  # of the median: the quartiles of steps of one group lie no further apart


def groups(views: Sequence[RankView]) -> list[StepGroup]:
    """The groups of the steps of the first rank that has any; none where all steps launch the same."""
    own = next((view for view in views if not view.no_steps and busiest(view)), None)
    if own is None:
        return []
    windows = busiest(own)
    places = _turns(_launched(own, [window.number for window in windows]))
    return [
        StepGroup(
            numbers=[windows[at].number for at in group], mean_ns=round(mean(windows[at].length_ns for at in group))
        )
        for group in places
    ]


def period(durations_ns: Sequence[int]) -> int:
    """Every how many steps their times repeat; 1 where they do not."""
    took = np.array(durations_ns, dtype=np.float64)
    if not len(took) or _apart(took) <= _TIGHT_SHARE * np.median(took):
        return 1
    for every in range(2, min(_LONGEST, len(took) // _LEAST_TURNS) + 1):
        turns = [took[first::every] for first in range(every)]
        rest = np.concatenate([one - np.median(one) for one in turns])
        if _apart(rest) <= _TIGHT_SHARE * np.median(took):
            return every
    return 1


def _apart(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def _launched(view: RankView, numbers: Sequence[int]) -> Ints:
    """How often each step launches each operation, by its name: steps x names."""
    device = max(view.devices, key=lambda one: len(one.windows))
    inside = device.launched_in != OUTSIDE
    names, code = np.unique(view.columns.name_id[device.operations.rows[inside]], return_inverse=True)
    counts = np.zeros((len(view.steps), len(names)), dtype=np.int64)
    np.add.at(counts, (device.launched_in[inside], code), 1)
    places = {step.number: at for at, step in enumerate(view.steps)}
    return counts[[places[number] for number in numbers]]


def _turns(counts: Ints) -> list[list[int]]:
    """The places of the steps of each group, for the shortest period of which there are two turns; none without one."""
    steps = len(counts)
    neighbours = min((_alike(*pair) for pair in pairwise(counts)), default=1.0)
    for every in range(2, steps // 2 + 1):
        within = min(_alike(counts[at], counts[at + every]) for at in range(steps - every))
        if within < max(_ALIKE, neighbours + _UNLIKE):
            continue
        found: list[list[int]] = []
        for first in range(every):
            same = next(
                (one for one in found if _alike(counts[one[0]], counts[first]) > (within + neighbours) / 2), None
            )
            if same is None:
                found.append(same := [])
            same += range(first, steps, every)
        return [sorted(one) for one in found] if len(found) > 1 else []
    return []


def _alike(one: Ints, other: Ints) -> float:
    return float(np.minimum(one, other).sum() / max(1, np.maximum(one, other).sum()))
