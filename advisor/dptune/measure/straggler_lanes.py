"""The steps to draw: one step of the straggler, and the same step of a usual rank."""

from __future__ import annotations

from dataclasses import replace

from dptune.measure.lanes import RankLanes, StepLanes, drawn, step_lanes
from dptune.measure.steps.windows import Step
from dptune.measured import Measured, RankFigures
from dptune.trace.run import Run


def timeline_steps(run: Run, measured: Measured, *, late: bool = True) -> list[StepLanes]:
    """The step in which the straggler is about as late as it usually is, then the same step of a usual rank.

    Without a straggler, where no other rank has that step, and if not `late`: the median step of one rank; empty where
    there is none.
    """
    compared = _compared(run, measured) if late else []
    if compared:
        return compared
    median = step_lanes(run)
    return [] if median is None else [median]


def _compared(run: Run, measured: Measured) -> list[StepLanes]:
    straggler = measured.known("straggler")
    ranks = {rank.rank: rank for rank in measured.ranks}
    lags = {
        number: {lag.number: (step, lag.lag_ns) for lag in arrival.steps if (step := _step(rank, lag.number))}
        for number, rank in ranks.items()
        if (arrival := rank.known("arrival")) is not None
    }
    if straggler is None or not straggler.lag_ns or not lags.get(straggler.rank):
        return []
    late = lags.pop(straggler.rank)
    number = min(late, key=lambda step: abs(late[step][1] - straggler.lag_ns))
    others = {rank: steps[number] for rank, steps in lags.items() if number in steps}
    if not others:
        return []
    usual = sorted(others, key=lambda rank: others[rank][1])[len(others) // 2]
    steps = []
    for rank, (step, lag_ns) in ((straggler.rank, late[number]), (usual, others[usual])):
        rank_lanes = RankLanes(run, rank)
        start_ns = rank_lanes.base_ns + step.start_ns - (ranks[rank].known("clock_ahead_ns") or 0)
        late_rank = rank == straggler.rank
        steps.append(replace(drawn(rank_lanes, step), start_ns=start_ns, lag_ns=lag_ns, late=late_rank))
    comparable = all(ranks[step.rank].known("clock_ahead_ns") is not None for step in steps)
    first_ns = min(step.start_ns for step in steps)
    return [replace(step, start_ns=step.start_ns - first_ns if comparable else 0) for step in steps]


def _step(rank: RankFigures, number: int) -> Step | None:
    """A step of the device of a rank that has most of them."""
    stepped = [device.steps for device in rank.devices if device.steps]
    found = (step for step in max(stepped, key=len, default=[]) if step.number == number)
    return next((Step(number, step.start_ns, step.start_ns + step.account.window_ns) for step in found), None)
