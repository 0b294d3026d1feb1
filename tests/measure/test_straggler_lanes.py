"""The step of the straggler and the same step of a usual rank, on one clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.measure.lanes import StepLanes, step_lanes
from dptune.measure.straggler_lanes import timeline_steps
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package


def ends(step: StepLanes, kind: str) -> int:
    """When the last piece of a kind ends, on the clock of both."""
    pieces = [piece for lane in step.lanes for piece in lane.pieces if piece.kind == kind]
    return step.start_ns + max(piece.start_ns + piece.length_ns for piece in pieces)


@pytest.mark.parametrize("folder", ["torchrec_straggler_4xv100", "nanogpt_8xh100"])
def test_a_straggler_is_beside_a_usual_rank_in_the_same_step(real_traces: Path, folder: str) -> None:
    run, measured = load([real_traces / folder], cached=False), reading.measured(real_traces / folder)
    late, usual = timeline_steps(run, measured)
    assert late.late
    assert not usual.late
    assert late.rank == measured.straggler.rank != usual.rank
    assert late.number == usual.number
    assert late.lag_ns > usual.lag_ns
    assert min(late.start_ns, usual.start_ns) == 0
    lags = {
        step.number: step.lag_ns for rank in measured.ranks if rank.rank == late.rank for step in rank.arrival.steps
    }
    assert late.lag_ns == lags[late.number]
    assert all(
        abs(late.lag_ns - measured.straggler.lag_ns) <= abs(lag - measured.straggler.lag_ns) for lag in lags.values()
    )


def test_the_longest_idle_time_is_named_by_the_range_it_lies_in(real_traces: Path) -> None:
    folder = real_traces / "torchrec_straggler_4xv100"
    late, _ = timeline_steps(load([folder], cached=False), reading.measured(folder))
    assert late.idle is not None
    assert late.idle.inside == "# running sparse arch"
    assert 1e9 < late.idle.length_ns < late.length_ns
    end = late.idle.start_ns + late.idle.length_ns
    pieces = [piece for lane in late.lanes for piece in lane.pieces]
    assert all(piece.start_ns + piece.length_ns <= late.idle.start_ns or piece.start_ns >= end for piece in pieces)


def test_a_collective_ends_at_one_moment_on_both(real_traces: Path) -> None:
    folder = real_traces / "torchrec_straggler_4xv100"
    late, usual = timeline_steps(load([folder], cached=False), reading.measured(folder))
    longest_ns = max(late.length_ns, usual.length_ns)
    assert abs(ends(late, "communication") - ends(usual, "communication")) < 0.02 * longest_ns


def test_without_a_straggler_one_median_step_is_drawn() -> None:
    run, report = reading.sample("accumulation_without_no_sync")
    assert report.measured.known("straggler") is None
    assert timeline_steps(run, report.measured) == [step_lanes(run)]


def test_where_no_other_rank_has_the_step_one_median_step_is_drawn() -> None:
    run, report = reading.sample("healthy")
    late = report.measured.straggler.rank
    ranks = [
        rank
        if rank.rank == late
        else rank.model_copy(update={"arrival": None, "missing": {**rank.missing, "arrival": "not measured"}})
        for rank in report.measured.ranks
    ]
    assert timeline_steps(run, report.measured.model_copy(update={"ranks": ranks})) == [step_lanes(run)]


def test_a_straggler_is_not_drawn_where_it_is_not_asked_for() -> None:
    run, report = reading.sample("healthy")
    assert len(timeline_steps(run, report.measured)) == 2
    assert timeline_steps(run, report.measured, late=False) == [step_lanes(run)]


def test_a_rank_without_a_clock_starts_its_step_with_the_other(real_traces: Path) -> None:
    folder = real_traces / "torchrec_straggler_4xv100"
    measured = reading.measured(folder)
    ranks = [
        rank.model_copy(update={"clock_ahead_ns": None, "missing": {**rank.missing, "clock_ahead_ns": "unknown"}})
        for rank in measured.ranks
    ]
    steps = timeline_steps(load([folder], cached=False), measured.model_copy(update={"ranks": ranks}))
    assert [step.start_ns for step in steps] == [0, 0]
