"""Groups of alternating steps, as with an optimizer every second step: their difference is a pattern, not noise.

Traced steps take turns by what they launch: steps a period apart launch the same, neighbours do not. Else they take
turns where steps a period apart take the same time and others do not, or where long ones recur with a period. For
untraced steps only the time is known. A mean over traced steps covers whole periods: otherwise it would depend on where
the recording ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

import numpy as np

from dptune.measure.intervals import Ints
from dptune.measure.steps.exclusive import exclusive
from dptune.measure.steps.lengths import ended
from dptune.measure.steps.outliers import outliers, recurring
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView, busiest, without
from dptune.measured import StepGroup

_ALIKE = 0.97  # of the operations of steps a period apart; real steps that launch the same have 0.98 and more
_UNLIKE = 0.02  # less alike are neighbours of two groups
_LONGEST = 8  # period of times
_LEAST_TURNS = 4  # of a period, for times alone to show it
_TIGHT_SHARE = 0.03  # of the median: the quartiles of steps of one group lie no further apart


@dataclass(frozen=True)
class Turns:
    """Every how many steps they take turns, and by group the remainders of their numbers, divided by that.

    `by`: what differs between the groups: what they launch, or only how long they take.
    """

    every: int
    groups: list[list[int]]
    by: Literal["operations", "time"]


def turns(views: Sequence[RankView]) -> Turns | None:
    """How steps take turns, by what those of the first rank that has any launch, else by their times."""
    first_view = next((view for view in views if view.whole and not view.no_steps and busiest(view)), None)
    if first_view is None:
        return None
    numbers = [window.number for window in busiest(first_view)]
    return _by_operations(views, _launched(first_view, numbers), numbers) or _by_time(views)


def groups(views: Sequence[RankView], taken: Turns | None) -> list[StepGroup]:
    """The groups of the steps of the first rank that has any."""
    first_view = next((view for view in views if not view.no_steps and busiest(view)), None)
    if first_view is None or taken is None:
        return []
    found = []
    for remainders in taken.groups:
        windows = [window for window in busiest(first_view) if window.number % taken.every in remainders]
        if windows:
            mean_ns = round(mean(window.length_ns for window in windows))
            found.append(StepGroup(numbers=[window.number for window in windows], mean_ns=mean_ns))
    return found


def whole_periods(views: Sequence[RankView], taken: Turns | None) -> tuple[list[RankView], list[int]]:
    """The ranks without the steps that complete no period, so that each group has its share; and their numbers.

    A rank that has no whole period keeps its steps.
    """
    left: set[int] = set()
    found = []
    for view in views:
        numbers = [window.number for window in busiest(view)]
        whole = _whole(numbers, taken.every) if taken is not None else []
        surplus = set(numbers) - set(whole) if whole else set()
        left |= surplus
        found.append(without(view, surplus) if surplus else view)
    return found, sorted(left)


def _whole(numbers: Sequence[int], every: int) -> list[int]:
    """Of these numbers, ascending, those in runs of `every` that follow one another."""
    whole: list[int] = []
    run: list[int] = []
    for number in numbers:
        run = [*run, number] if run and number == run[-1] + 1 else [number]
        if len(run) == every:
            whole += run
            run = []
    return whole


def period(durations_ns: Sequence[int]) -> int:
    """Every how many steps their times repeat; 1 where they do not."""
    took = np.array(durations_ns, dtype=np.float64)
    if not len(took) or _apart(took) <= _TIGHT_SHARE * np.median(took):
        return 1
    for every in range(2, min(_LONGEST, len(took) // _LEAST_TURNS) + 1):
        turns = [took[first::every] for first in range(every)]
        rest = np.concatenate([turn - np.median(turn) for turn in turns])
        if _apart(rest) <= _TIGHT_SHARE * np.median(took):
            return every
    return 1


def _apart(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def _launched(view: RankView, numbers: Sequence[int]) -> Ints:
    """How often each step launches each operation, by its name: steps x names."""
    device = max(view.devices, key=lambda candidate: len(candidate.windows))
    inside = device.launched_in != OUTSIDE
    names, code = np.unique(view.columns.name_id[device.operations.rows[inside]], return_inverse=True)
    counts = np.zeros((len(view.steps), len(names)), dtype=np.int64)
    np.add.at(counts, (device.launched_in[inside], code), 1)
    places = {step.number: at for at, step in enumerate(view.steps)}
    return counts[[places[number] for number in numbers]]


def _by_operations(views: Sequence[RankView], counts: Ints, numbers: Sequence[int]) -> Turns | None:
    """The shortest period of which there are two turns.

    The last step of the second turn may be missing where the first alone shows it: it runs an optimizer or
    communicates, and no other step does.
    """
    at = {number: counts[place] for place, number in enumerate(numbers)}
    neighbours = _least_alike(at, 1)
    for every in range(2, (len(numbers) + 1) // 2 + 1):
        members = [[number for number in numbers if number % every == rest] for rest in range(every)]
        single = {step_numbers[0] for step_numbers in members if len(step_numbers) == 1}
        if not all(members) or len(single) > 1 or (single and exclusive(views, single) != single):
            continue
        within = _least_alike(at, every)
        if within < max(_ALIKE, neighbours + _UNLIKE):
            continue
        found: list[list[int]] = []
        for number in sorted(step_numbers[0] for step_numbers in members):
            same = next(
                (group for group in found if _alike(at[group[0]], at[number]) > (within + neighbours) / 2), None
            )
            if same is None:
                found.append(same := [])
            same.append(number)
        if len(found) > 1:
            return Turns(every, [[number % every for number in group] for group in found], "operations")
        return None
    return None


def _least_alike(at: Mapping[int, Ints], apart: int) -> float:
    """How alike steps are that lie so far apart: the least alike two of them."""
    pairs = [(counts, at[number + apart]) for number, counts in at.items() if number + apart in at]
    if not pairs:
        return 1.0
    first, other = (np.stack(each) for each in zip(*pairs, strict=True))
    most = np.maximum(first, other).sum(axis=1)
    return float((np.minimum(first, other).sum(axis=1) / np.maximum(most, 1)).min())


def _by_time(views: Sequence[RankView]) -> Turns | None:
    """The period of long steps that recur, else of all times."""
    took = ended(views)
    numbers = list(took)
    long = recurring(took, [numbers[at] for at in outliers(list(took.values()))])
    if long:
        every = long[1] - long[0]
        rest = [number % every for number in range(long[0] + 1, long[0] + every)]
        return Turns(every, [rest, [long[0] % every]], "time")
    every = period(list(took.values())) if numbers and len(numbers) == numbers[-1] - numbers[0] + 1 else 1
    found = _quick_and_slow(took, every)
    return Turns(every, found, "time") if found else None


def _quick_and_slow(took: Mapping[int, int], every: int) -> list[list[int]]:
    """The remainders of quick steps and those of slow ones, where each slow one is clearly longer; none where not."""
    turns = [[ns for number, ns in took.items() if number % every == rest] for rest in range(every)]
    order = sorted(range(every), key=lambda rest: max(turns[rest], default=0))
    for at in range(1, every):
        gap_ns = min(min(turns[rest]) for rest in order[at:]) - max(turns[order[at - 1]])
        if gap_ns > _TIGHT_SHARE * np.median(list(took.values())):
            return [sorted(order[:at]), sorted(order[at:])]
    return []


def _alike(first: Ints, other: Ints) -> float:
    return float(np.minimum(first, other).sum() / max(1, np.maximum(first, other).sum()))
