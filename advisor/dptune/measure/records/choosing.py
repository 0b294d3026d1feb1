"""Which ranks to read in full: those that differ, and some to compare them with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import median
from typing import cast

from dptune.measure.across_ranks import across
from dptune.measure.complete import complete
from dptune.measure.steps.steady import steady
from dptune.measure.views import RankView
from dptune.measured import ArrivalFigures, DeviceFigures
from dptune.trace.run import Run

MOST = 8  # ranks that are read in full: the lowest, stragglers, those that compute longest or shortest, some others
_LATEST = 3
_MOST_APART = 2


def differing(run: Run) -> list[int]:
    """The ranks of a run of records to read in full, ascending; all of them where there are few."""
    ranks = [rank.rank for rank in run.digested]
    if len(ranks) <= MOST:
        return ranks
    views = [replace(cast(RankView, rank.digest), rank=rank.rank) for rank in run.digested]
    views, _ = steady(complete(views, run.world_size))
    together = across(run, views)
    stepped = [view.rank for view in views if not view.no_steps]
    found = dict.fromkeys(stepped[:1])
    found.update(dict.fromkeys(_latest(together.arrivals)))
    found.update(dict.fromkeys(_farthest(together.devices)))
    left = [rank for rank in stepped if rank not in found]
    more = MOST - len(found)
    found.update(dict.fromkeys(left[at * len(left) // more] for at in range(more) if left))
    return sorted(found) or ranks[:1]


def _latest(arrivals: Mapping[int, ArrivalFigures]) -> list[int]:
    """The ranks that the others wait for most, over all steps."""
    lag_ns = {rank: sum(step.lag_ns for step in figures.steps) for rank, figures in arrivals.items()}
    late = sorted((rank for rank in lag_ns if lag_ns[rank]), key=lambda rank: (-lag_ns[rank], rank))
    return late[:_LATEST]


def _farthest(devices: Mapping[int, Collection[DeviceFigures]]) -> list[int]:
    """The ranks whose compute time is farthest from the median of all."""
    compute_ns = {
        rank: sum(step.account.compute_ns for device in of_rank for step in device.steps)
        for rank, of_rank in devices.items()
    }
    usual_ns = median(compute_ns.values()) if compute_ns else 0
    return sorted(compute_ns, key=lambda rank: (-abs(compute_ns[rank] - usual_ns), rank))[:_MOST_APART]
