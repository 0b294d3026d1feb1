"""The steps that the figures are of: the same numbers on all ranks, without those that took much longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from itertools import takewhile
from operator import or_

import numpy as np

from dptune.measure.steps.exclusive import communicating, exclusive
from dptune.measure.steps.groups import Turns, groups
from dptune.measure.steps.lengths import ended, lengths
from dptune.measure.steps.outliers import OF_MEDIAN, outliers, recurring
from dptune.measure.views import RankView, busiest, renumbered, without
from dptune.measured import SetAsideStep, StepsFigures

_MARKED = "the script marks its steps, so they may differ"
_SAME_STEP = 0.25  # of a step: how far the beginnings of one step on two ranks may lie apart


def steady(views: Sequence[RankView]) -> tuple[list[RankView], list[SetAsideStep]]:
    """The ranks with the steps that are kept, and those set aside, on all ranks alike.

    How long a step took is the median over ranks of its window on the rank's busiest device: a rank that is slow in
    one step makes the others wait in it. A step stays, however long, that runs an optimizer or communicates where the
    shorter ones do not: the others are then micro-batches of it. So do long steps that recur with a period.

    A rank that stalls before the first operation of a step stalls in its own window of the step before: that goes too.
    """
    views = _numbered_alike(views)
    took = lengths(views)
    numbers = sorted(took)
    long = [numbers[at] for at in outliers([took[number] for number in numbers])]
    stay = exclusive(views, set(long)) | set(recurring(ended(views), long))
    gone = set(long) - stay
    if not gone:
        return list(views), []
    stalled = _stalled(views, gone)
    gone |= stalled.keys()
    usual = float(np.median([took[number] for number in numbers if number not in gone]))
    first = {
        number for number, _ in takewhile(lambda pair: pair[0] == pair[1], zip(numbers, sorted(gone), strict=False))
    }
    aside = []
    for number in sorted(gone):
        rank = stalled.get(number, _longer_of_two(views, number))
        measured = views if rank is None else [view for view in views if view.rank == rank]
        windows = [window for view in measured for window in busiest(view) if window.number == number]
        length_ns = took[number] if rank is None else windows[0].length_ns
        everywhere = [window.length_ns for view in views for window in busiest(view) if window.number == number]
        aside.append(
            SetAsideStep(
                number=number,
                length_ns=length_ns,
                of_usual=length_ns / usual,
                warm_up=number in first,
                mean_ns=round(float(np.mean(everywhere))),
                rank=rank,
                loader_wait_ns=_median(_loading_ns(view, number) for view in measured),
                idle_ns=_median(_idle_ns(view, number) for view in measured),
                host_ns=_median(_host_ns(view, number) for view in measured),
            )
        )
    return [without(view, gone) for view in views], aside


def _stalled(views: Sequence[RankView], gone: AbstractSet[int]) -> dict[int, int]:
    """Steps with a stall on one rank for which the others wait in a later step, one of `gone`; and that rank.

    On that rank the later step is not long, an earlier one is, and in between it has none that communicates.
    """
    found: dict[int, tuple[int, int]] = {}
    for view in views:
        windows = {window.number: window.length_ns for window in busiest(view)}
        order = sorted(windows)
        long = {order[at] for at in outliers([windows[number] for number in order])}
        talking = communicating(view) - gone
        for number in sorted(gone & windows.keys() - long):
            earlier = max((at for at in long - gone if at < number), default=None)
            if earlier is not None and not any(earlier < at < number for at in talking):
                found[earlier] = max(found.get(earlier, (0, 0)), (windows[earlier], view.rank))
    return {number: rank for number, (_, rank) in found.items()}


def _longer_of_two(views: Sequence[RankView], number: int) -> int | None:
    """The rank on which a step took long where it did not on the only other: the median of two would be neither."""
    took = sorted(
        (window.length_ns, view.rank) for view in views for window in busiest(view) if window.number == number
    )
    return took[1][1] if len(took) == 2 and took[1][0] > OF_MEDIAN * took[0][0] else None


def _median(times_ns: Iterable[int | None]) -> int:
    known = [ns for ns in times_ns if ns is not None]
    return round(float(np.median(known))) if known else 0


def _host_ns(view: RankView, number: int) -> int | None:
    """How long the host's step took; None where the rank has no such step."""
    return next((step.length_ns for step in view.steps if step.number == number), None)


def _loading_ns(view: RankView, number: int) -> int | None:
    """What the host waits for a data loader in a step's window; None where the rank has no such step."""
    window = next((device_window for device_window in busiest(view) if device_window.number == number), None)
    return None if window is None else view.host.loading.within(window.start_ns, window.end_ns).total_ns


def _idle_ns(view: RankView, number: int) -> int | None:
    """How long nothing runs on the busiest device in a step; None where the rank has no such step."""
    device = max(view.devices, key=lambda candidate: len(candidate.windows), default=None)
    window = (
        next((device_window for device_window in device.windows if device_window.number == number), None)
        if device
        else None
    )
    if device is None or window is None:
        return None
    ran = reduce(or_, device.operations.time.values())
    return window.length_ns - ran.within(window.start_ns, window.end_ns).total_ns


def figures(
    views: Sequence[RankView],
    aside: list[SetAsideStep],
    cut: Sequence[int] = (),
    queued_before_ns: int = 0,
    taken: Turns | None = None,
    surplus: Sequence[int] = (),
) -> StepsFigures | None:
    """What marks the steps, how alike they are and how many there are; None where no rank has any.

    `cut` and `queued_before_ns` are what `tails` finds, `taken` and `surplus` what `groups` does.
    """
    stepped = [view for view in views if not view.no_steps]
    if not stepped:
        return None
    basis = next(
        (rank_view.basis for least in ("repeating", "optimizer") for rank_view in stepped if rank_view.basis == least),
        "profiler_step",
    )
    known = [rank_view.similarity for rank_view in stepped if rank_view.similarity is not None]
    return StepsFigures(
        basis=basis,
        similarity=min(known) if known else None,
        by_rank={rank_view.rank: len(busiest(rank_view)) for rank_view in stepped},
        without_work=max(_without_work(rank_view) for rank_view in stepped),
        set_aside=aside,
        groups=groups(views, taken),
        grouped_by=taken.by if taken else "operations",
        period=taken.every if taken else 1,
        surplus=list(surplus),
        cut_short=list(cut),
        queued_before_ns=queued_before_ns,
        missing={} if known else {"similarity": _MARKED},
    )


def _without_work(view: RankView) -> int:
    """How many steps between the first and the last window of the busiest device have none there."""
    numbers = {window.number for window in busiest(view)}
    places = [at for at, step in enumerate(view.steps) if step.number in numbers]
    return places[-1] - places[0] + 1 - len(places) if places else 0


def _numbered_alike(views: Sequence[RankView]) -> list[RankView]:
    """Steps that carry no number take that of the step which another rank of the host makes at the same time.

    That rank is the first whose steps are marked, else the first. Where the steps of the two do not begin within a
    quarter of a step (the median), as when the clocks differ, the first steps are taken to be the same.
    """
    stepped = [view for view in views if view.steps]
    model = next(
        (rank_view for rank_view in stepped if rank_view.basis == "profiler_step"), stepped[0] if stepped else None
    )
    if model is None:
        return list(views)
    numbered = [
        rank_view if rank_view is model or _has_numbers(rank_view) else renumbered(rank_view, _first(rank_view, model))
        for rank_view in views
    ]
    least = min(step.number for rank_view in numbered for step in rank_view.steps)
    if least >= 0:
        return numbered
    return [
        renumbered(rank_view, rank_view.steps[0].number - least) if rank_view.steps else rank_view
        for rank_view in numbered
    ]


def _has_numbers(view: RankView) -> bool:
    return view.basis == "profiler_step" or not view.steps


def _first(view: RankView, model: RankView) -> int:
    """The number of the first step. Devices are compared, not hosts: of two ranks one host may run a step ahead."""
    starts, others = (
        np.array([rank_view.base_ns + window.start_ns for window in busiest(rank_view)], dtype=np.int64)
        for rank_view in (view, model)
    )
    if not len(starts) or not len(others):
        return model.steps[0].number
    apart = np.abs(others - starts[:, np.newaxis])
    shifts = range(1 - len(starts), len(others))
    shift = min(shifts, key=lambda by: float(np.median(np.diagonal(apart, by))))
    usual = float(np.median([window.length_ns for window in busiest(model)]))
    if view.trace.host != model.trace.host or np.median(np.diagonal(apart, shift)) > _SAME_STEP * usual:
        return model.steps[0].number
    view_place, other = max(0, -shift), max(0, shift)
    ahead = busiest(view)[view_place].number - view.steps[0].number
    return busiest(model)[other].number - ahead
