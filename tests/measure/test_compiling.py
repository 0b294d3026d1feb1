"""Compilations of torch.compile in traces that dptune did not record: by hand, and of recorded runs without facts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dptune.advice import Report
from dptune.commands.shared.reading import report_of

from .handmade import US, Event, annotation, launched, measure_events, operator, step

RUNS = Path(__file__).parents[1] / "rules" / "recorded" / "runs"


def compiling(*steps: int) -> list[Event]:
    """Four steps of 100; in these a compilation of 40 with a nested one. Each calls the region, compiled 3 times."""
    events: list[Event] = []
    for number in range(4):
        at = 100 * number
        events += [step(number, at, at + 100)]
        events += launched("gemm", at + 1, at + 2, at + 90, number)
        if number in steps:
            events += [operator("_compile.compile_inner (dynamo_timed)", at + 10, at + 50)]
            events += [operator("build_guards (dynamo_timed)", at + 20, at + 30)]
        events += [operator("Torch-Compiled Region: 0/2", at + 60, at + 70)]
        events += [annotation("Torch-Compiled Region: 1/0", at + 70, at + 80)]
    return events


def test_by_step(tmp_path: Path) -> None:
    figures = measure_events(tmp_path, compiling(1, 2)).compiling
    assert figures.compile_ns == [0, 40 * US, 40 * US]  # the last step lacks what follows it
    assert figures.compilations == 3
    assert figures.steps_ns == [100 * US] * 3


def test_eager_code_compiles_nothing(tmp_path: Path) -> None:
    events = [event for event in compiling() if "Region" not in event["name"]]
    figures = measure_events(tmp_path, events).compiling
    assert (sum(figures.compile_ns), figures.compilations) == (0, 0)


def traces_of(name: str, place: Path) -> Report:
    """The report of the traces of a recorded run, as if anyone had recorded them."""
    for path in sorted((RUNS / name).glob("*.trace.json.gz")):
        shutil.copy(path, place)
    return report_of([str(place)], cached=False)


@pytest.mark.long
def test_recompilations_of_a_trace_without_facts(tmp_path: Path) -> None:
    (advice,) = [each for each in traces_of("recompiles", tmp_path).advice if each.rule == "DP607"]
    assert "of the time, in 4 of 4 traced steps" in advice.title
    assert advice.saves.high_share == pytest.approx(0.66, abs=0.05)
    assert {each.label: each.value for each in advice.evidence}["compilations of one function so far"] == 28


@pytest.mark.long
def test_quiet_where_shapes_are_dynamic(tmp_path: Path) -> None:
    report = traces_of("recompiles-mended", tmp_path)
    assert "DP607" in report.quiet
