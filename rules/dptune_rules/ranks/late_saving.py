"""What a step saves without the delay of its late rank."""

from __future__ import annotations

from collections.abc import Mapping

from dptune.advice import Saving
from dptune.measured import StragglerFigures
from dptune.rule import RunView, Share

LEAST_PART = 0.8  # of the delay: a mended run saved 0.91 times it, and one that dropped samples 0.93
LEAST_OF_BOUND = 0.5  # with less of the upper bound in its busy time the rank waits for something else, as its input


def without_delay(run: RunView, late: StragglerFigures, busy: Mapping[int, float], bound: Saving) -> Saving | None:
    """The saving by how much longer the rank is busy in untraced steps than any other, up to the bound.

    For a delay that can be removed: work that only this rank does. None if these times are unknown, or have less than
    half of that bound.
    """
    others = [ns for rank, ns in busy.items() if rank != late.rank]
    if late.rank not in busy or len(others) + 1 != run.measured.world_size or not run.times_hold:
        return None
    delay = (busy[late.rank] - max(others)) / run.measured.step.time_ns
    if not LEAST_OF_BOUND * bound.high_share <= delay < 1 or not delay:
        return None
    how = "the time in untraced steps beyond that of the busiest other rank"
    part = LEAST_PART, max(1.0, bound.high_share / delay)
    return run.removed({late.rank: Share(delay, delay, delay)}, how, part, timed=True)


def upper_bound(run: RunView, late: StragglerFigures, busy: Mapping[int, float]) -> Saving:
    """What the step saves at most: all of the rank's delay, even where the extra work would move to the others."""
    arrival = next(traced_rank.arrival for traced_rank in run.measured.ranks if traced_rank.rank == late.rank)
    most, bound_by = _most(run, late, [step.lag_ns for step in arrival.steps])
    bound = run.bound(0.0, run.unstretched(most), bound_by)
    others = [ns for rank, ns in busy.items() if rank != late.rank]
    unbusy = 1 - max(others) / run.measured.step.time_ns if others and late.rank in busy else 0.0
    if unbusy > bound.high_share:
        bound = run.bound(0.0, unbusy, "the step minus the busy time of the busiest other rank")
    return bound


def others_wait(run: RunView, late: StragglerFigures) -> float:
    """What the mean of the other ranks waits for others, as a share of the traced step."""
    waits = _waits(run, late)
    if not any(waits):  # the late rank waits for none
        ranks = len(run.measured.ranks)
        return min(1.0, late.waiting_share * ranks / (ranks - 1))
    return sum(waits) / len(waits)


def _waits(run: RunView, late: StragglerFigures) -> list[float]:
    """What each other rank waits, as a share of its steps."""
    return [
        sum(step.account.exposed_waiting_ns for step in device.steps)
        / sum(step.account.window_ns for step in device.steps)
        for rank in run.measured.ranks
        for device in rank.devices
        if rank.rank != late.rank and device.steps
    ]


def unsure(replayed: Saving, gain: float) -> str:
    """Why a replay does not stand for the saving, though the delay was measured."""
    return (
        f"a replay saves {100 * replayed.low_share:.0f} to {100 * replayed.high_share:.1f} % of a step, which includes "
        f"zero; the delay itself is measured, and without it the traced steps are {100 * gain:.0f} % shorter"
    )


def _most(run: RunView, late: StragglerFigures, lags: list[int]) -> tuple[float, str]:
    """What the step saves at most, as a share of the traced one, and why no more."""
    ranks, gain = len(run.measured.ranks), late.known("gain_share")
    if (
        gain is None
    ):  # the late rank itself waits for none, and what it does longer would be gone from its own steps too
        waiting = late.waiting_share * ranks / (ranks - 1)
        mean_lag = sum(lags) / len(lags) / run.measured.traced_step_ns
        if waiting >= mean_lag:
            return waiting, f"the time that the other ranks wait, {_percent(waiting)} of a traced step"
        return mean_lag, f"the rank's mean lag, {_percent(mean_lag)} of a traced step"
    least_wait = min(_waits(run, late), default=gain)
    if gain >= least_wait:
        return gain, "the saving of a replay without the rank's delays"
    return least_wait, (
        f"the shortest wait of the other ranks, {_percent(least_wait)} of a traced step; the replay ignores that "
        "waiting kernels slow the others"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
