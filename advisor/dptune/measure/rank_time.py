"""All ranks on one clock: what the device of each did at any moment, by class of the account."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptune.measure.across_ranks import device_timelines, host_of, matched_calls
from dptune.measure.complete import complete_views
from dptune.measure.device.timeline import Timeline
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView, busiest
from dptune.measured import CLASSES
from dptune.trace.run import Run

Shares = NDArray[np.float64]
INPUT = "input_idle_ns"
OTHER_IDLE = "other_idle_ns"  # idle for any reason but input
SHOWN = (*(name for name in CLASSES if not name.endswith("_idle_ns")), INPUT, OTHER_IDLE)
_NO_DEVICE = "its trace holds no operation of a device"


@dataclass(frozen=True, eq=False)
class RankTime:
    """One rank. `offset_ns` is what to add to a time of its trace to read it by the clock of the first rank's trace.

    `aligned`: whether collectives or a shared host clock give it; else its steps are placed at those of the first rank.
    `spent` is the time of each class of `SHOWN` that has any, device by device. `missing` says why nothing is known of
    its device.
    """

    rank: int
    host: str
    view: RankView
    offset_ns: int
    aligned: bool
    devices: int
    spent: tuple[tuple[str, Intervals], ...]
    missing: str = ""

    @property
    def steps(self) -> list[Step]:
        """Its steps by the common clock."""
        return [
            Step(step.number, step.start_ns + self.offset_ns, step.end_ns + self.offset_ns, step.open_ended)
            for step in busiest(self.view)
        ]

    def shares(self, cuts: Ints) -> dict[str, Shares]:
        """Between each two neighbouring moments the share of each class of `SHOWN`, the mean over its devices.

        What lies outside the recording is of no class.
        """
        cuts = cuts - self.offset_ns
        length = np.maximum(np.diff(cuts), 1) * max(self.devices, 1)
        found = {name: np.zeros(len(cuts) - 1) for name in SHOWN}
        for name, spent in self.spent:
            found[name] += np.diff(spent.before(cuts)) / length
        return found


class RunTime:
    """The time of every rank of a run."""

    def __init__(self, run: Run, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        views = [view for view in complete_views(run) if view.whole]
        together = matched_calls(run, views)
        timelines: dict[int, list[Timeline]] = {}
        places = {rank_view.rank: at for at, rank_view in enumerate(views)}
        for rank_view, _, spent in device_timelines(views, together.collectives):
            timelines.setdefault(rank_view.rank, []).append(spent)
            progress(places[rank_view.rank], len(views))
        progress(len(views), len(views))
        self.ranks: dict[int, RankTime] = {}
        first = views[0]
        for rank_view in views:
            number = rank_view.rank
            clock = together.clocks.get(number)
            offset = rank_view.base_ns - first.base_ns - (clock.ahead_ns if clock else 0)
            aligned = clock is not None and _meets(first, rank_view, offset)
            if not aligned:
                offset = _by_steps(first, rank_view)
            fatal = next((loss.text for loss in rank_view.losses if loss.fatal), "")
            devices = timelines.get(number, [])
            missing = "" if devices else fatal or rank_view.no_steps or _NO_DEVICE
            host = host_of(run, number) or ""
            shown = tuple(part for device in devices for part in _shown(device))
            self.ranks[number] = RankTime(number, host, rank_view, offset, aligned, len(devices), shown, missing)

    @property
    def recorded_ns(self) -> tuple[int, int]:
        """From the first event of any rank to the end of the last, by the common clock."""
        spans = [
            (low + each.offset_ns, high + each.offset_ns)
            for each in self.ranks.values()
            for low, high in _span(each.view)
        ]
        return min((low for low, _ in spans), default=0), max((high for _, high in spans), default=0)

    def step(self, number: int) -> Step | None:
        """A step from where the first rank begins it to where the last ends it; None where no rank has it."""
        found = [step for each in self.ranks.values() for step in each.steps if step.number == number]
        if not found:
            return None
        return Step(number, min(step.start_ns for step in found), max(step.end_ns for step in found))


def _shown(device: Timeline) -> Iterator[tuple[str, Intervals]]:
    """The time of each class of `SHOWN` that has any."""
    found = dict.fromkeys(SHOWN, NOTHING)
    for name in CLASSES:
        found[OTHER_IDLE if name.endswith("_idle_ns") and name != INPUT else name] |= device.classes[name]
    return ((name, spent) for name, spent in found.items() if len(spent))


def _span(rank_view: RankView) -> list[tuple[int, int]]:
    columns = rank_view.columns
    return [(int(columns.ts_ns.min()), int(columns.end_ns.max()))] if len(columns) else []


def _meets(first: RankView, other: RankView, offset: int) -> bool:
    """Whether two ranks recorded at the same time, by the clocks found."""
    return any(
        low + offset < until and begin < high + offset for begin, until in _span(first) for low, high in _span(other)
    )


def _by_steps(first: RankView, other: RankView) -> int:
    """The offset that puts the first step that both have at the same moment; that puts their first events there."""
    begun = {step.number: step.start_ns for step in busiest(first)}
    both = [begun[step.number] - step.start_ns for step in busiest(other) if step.number in begun]
    firsts = [low - begin for (low, _), (begin, _) in zip(_span(first), _span(other), strict=False)]
    return next(iter([*both, *firsts]), 0)
