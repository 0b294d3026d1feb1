"""A step of A against one of B by its phases, and rank by rank."""

from __future__ import annotations

from statistics import mean

from dptune.compare.result import Basis, Pair, PhaseDifference, RankDifference
from dptune.compare.sides import ReadRun, Sides
from dptune.measured import Account, Missing

_EXPOSED = "exposed_communication_ns"


def phases(sides: Sides, basis: Basis) -> tuple[list[PhaseDifference] | None, str]:
    """Every phase that a run has; in a run without it, it takes no time."""
    try:
        if not all(run.measured.account.window_ns for _, run in sides.runs):
            return None, "the time breakdown of a run is empty"
        names = list(dict.fromkeys(phase.phase for _, run in sides.runs for phase in run.measured.phases))
    except Missing as missing:
        return None, missing.reason

    def spent(name: str, figure: str) -> Pair:
        def read(run: ReadRun) -> float:
            total_ns = sum(int(getattr(phase, figure)) for phase in run.measured.phases if phase.phase == name)
            return total_ns / run.measured.account.window_ns * run.step_ns(basis)

        return sides.pair(read)

    return [
        PhaseDifference(
            phase=name, compute_ns=spent(name, "compute_ns"), exposed_communication_ns=spent(name, _EXPOSED)
        )
        for name in names
    ], ""


def ranks(sides: Sides, basis: Basis) -> tuple[list[RankDifference] | None, str]:
    """Every rank that was read in all runs, and why there is none."""
    shared = set.intersection(*({rank.rank for rank in run.measured.ranks} for _, run in sides.runs))
    return [_rank(sides, rank, basis) for rank in sorted(shared)] or None, "no rank was read in all runs"


def _rank(sides: Sides, rank: int, basis: Basis) -> RankDifference:
    def spent(class_ns: str) -> Pair:
        return sides.pair(lambda run: _rank_account(run, rank).share(class_ns) * _rank_step_ns(run, rank, basis))

    return RankDifference(
        rank=rank,
        step_ns=sides.pair(lambda run: _rank_step_ns(run, rank, basis)),
        compute_ns=spent("compute_ns"),
        exposed_communication_ns=spent(_EXPOSED),
        idle_ns=spent("idle_ns"),
        loader_wait_share=sides.pair(lambda run: run.rank(rank).loader_wait_share),
        lag_ns=sides.pair(lambda run: run.rank(rank).arrival.lag_ns),
    )


def _rank_account(run: ReadRun, rank: int) -> Account:
    devices = run.rank(rank).devices
    if not devices:
        raise Missing("the trace holds no device operations of this rank")
    return sum((device.total for device in devices[1:]), devices[0].total)


def _rank_step_ns(run: ReadRun, rank: int, basis: Basis) -> float:
    """Its own median step; where that was not timed without the profiler, the mean window of its busiest device."""
    figures = run.rank(rank)
    if basis == "untraced":
        return figures.untraced_median_ns * run.step_ns(basis) / run.measured.step.untraced_median_ns
    steps = max((device.steps for device in figures.devices), key=len, default=[])
    if not steps:
        raise Missing("no steps were found in the trace")
    return mean(step.account.window_ns for step in steps)
