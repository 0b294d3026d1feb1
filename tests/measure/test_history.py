"""The history of step times: of every recorded window, and of the steps of other traces."""

from __future__ import annotations

from pathlib import Path

from dptune.measure.steps.history import step_history
from dptune.measured import SetAsideStep, StepsFigures
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window
from dptune.testing import figures, measured_run
from dptune.trace import load
from dptune.trace.run import Run

from .. import reading  # noqa: TID252 - tests are no installed package


def test_every_timed_step_of_a_recording_is_there_once() -> None:
    run, report = reading.sample("accumulation_without_no_sync")
    windows = {window.window: window.steps for window in step_history(run, report.measured)}
    assert list(windows) == ["untraced", "light", "detailed"]
    step = report.measured.step
    assert len(windows["untraced"]) == step.untraced_steps
    assert len(windows["light"]) == step.light_steps
    numbers = [timed.number for steps in windows.values() for timed in steps]
    assert numbers == sorted(set(numbers))
    for timed in windows["untraced"]:
        lengths = {
            rank: window.step_durations_ns[timed.number - window.first_step]
            for rank, facts in run.facts.items()
            if (window := facts.window("untraced"))
        }
        assert min(lengths.values()) <= timed.length_ns <= timed.longest_ns == max(lengths.values())
        assert lengths[timed.rank or 0] == timed.longest_ns


def test_a_window_that_a_rank_did_not_record_has_the_steps_of_the_others() -> None:
    """Rank 1 ended before its untraced steps."""
    light, untraced = Window("light", 0, [10_000_000] * 2), Window("untraced", 2, [7_000_000, 8_000_000])
    facts = {0: Facts(0, windows=[light, untraced]), 1: Facts(1, windows=[light])}
    found = step_history(Run(ranks=[], facts=facts), measured_run(steps=2))
    lengths = {window.window: [(step.number, step.length_ns, step.rank) for step in window.steps] for window in found}
    assert list(lengths) == ["light", "untraced"]
    assert lengths["untraced"] == [(2, 7_000_000, 0), (3, 8_000_000, 0)]


def test_outliers_are_those_of_the_report() -> None:
    run, report = reading.sample("healthy")
    (untraced,) = (window for window in step_history(run, report.measured) if window.window == "untraced")
    long = [timed for timed in untraced.steps if timed.outlier]
    assert len(long) == report.measured.step.untraced_outliers == 1
    assert long[0].longest_ns == report.measured.step.longest_outlier_ns


def test_traces_of_others_have_the_steps_of_the_account_and_those_set_aside() -> None:
    aside = SetAsideStep(number=9, length_ns=90_000_000, of_usual=9.0, warm_up=False, rank=1)
    measured = measured_run(steps=3).model_copy(
        update={"steps": figures(StepsFigures, basis="profiler_step", by_rank={0: 3, 1: 3}, set_aside=[aside])}
    )
    (window,) = step_history(Run(ranks=[]), measured)
    assert window.window == "light"
    assert [(timed.number, timed.length_ns, timed.outlier) for timed in window.steps] == [
        (0, 10_000_000, False),
        (1, 10_000_000, False),
        (2, 10_000_000, False),
        (9, 90_000_000, True),
    ]
    assert window.steps[-1].rank == 1


def test_a_public_trace_has_the_steps_that_its_report_counts(real_traces: Path) -> None:
    folder = real_traces / "torchrec_straggler_4xv100"
    (window,) = step_history(load([folder], cached=False), reading.measured(folder))
    assert len(window.steps) == max(reading.measured(folder).steps.by_rank.values())


def test_without_steps_there_is_no_history() -> None:
    assert step_history(Run(ranks=[]), measured_run(steps=0)) == []
