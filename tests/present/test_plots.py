"""Plots of characters: columns above an axis; then the step history and overlap that are drawn so."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dptune.advice import Report
from dptune.measure.steps.history import TimedStep, WindowHistory, step_history
from dptune.present.lines import Line
from dptune.present.plots import Column, columns
from dptune.present.sections.overlap import overlap
from dptune.present.sections.step_history import step_columns
from dptune.trace.run import Run

from .. import reading  # noqa: TID252 - tests are no installed package


def drawn(lines: Iterable[Line]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


def values(*heights: float) -> list[Column]:
    return [Column(height) for height in heights]


def test_columns_are_as_high_as_their_values() -> None:
    rows = drawn(columns(values(8, 4, 1, 16), 40, 2, 16, 4, lambda value: f"{value:g}"))
    assert rows == [
        " 16 │                  █████ ",
        "  4 │█████┄▄▄▄▄▄┄▁▁▁▁▁┄█████┄",
        "  0 └────────────────────────",
        "",
    ]


def test_more_columns_than_cells_share_cells_and_lose_no_outlier() -> None:
    many = [Column(1 if number != 700 else 9, flag=number == 700) for number in range(1_000)]
    rows = drawn(columns(many, 60, 4, 9, 1, lambda value: f"{value:g}"))
    assert all(len(row) <= 60 for row in rows)
    assert rows[0].count("█") == 1
    assert rows[-2].count("▲") == 1
    assert rows[-2].index("▲") == rows[0].index("█")


def test_labels_start_below_their_columns_where_there_is_room() -> None:
    marks = [Column(1, label="step 1 untraced"), Column(1, label="step 2 light"), *values(*[1] * 8)]
    marks[7] = Column(1, label="step 8")
    rows = drawn(columns(marks, 40, 1, 1, 1, lambda value: f"{value:g}"))
    assert rows[-1] == "    step 1 untraced      step 8"
    assert rows[-1].index("step 8") == 4 + 7 * 3


def test_a_step_is_a_column_and_an_outlier_is_named() -> None:
    steps = [TimedStep(number, 50_000_000, 51_000_000, 0, False) for number in range(6, 12)]
    steps[3] = TimedStep(9, 400_000_000, 420_000_000, 1, True)
    windows = [
        WindowHistory("untraced", steps),
        WindowHistory("light", [TimedStep(12, 60_000_000, 60_000_000, 0, False)]),
    ]
    lines = list(step_columns(windows, 80, recorded=True))
    rows = drawn(lines)
    assert rows[1] == "Time of each step (median over ranks)"
    assert rows[2].strip().startswith("189.0 ms │")  # a little above 3 times the highest median
    assert "step 6 untraced" in rows[-3]
    assert "▲ 1 outlier: step 9 (420.0 ms on rank 1)." in rows[-2]
    assert "Columns above" in " ".join(rows[-2:])
    roles = {span.role for line in lines for span in line if "█" in span.text}
    assert roles == {"good", "note", "error"}
    assert list(step_columns([WindowHistory("light", steps[:2])], 80, recorded=False)) == []


def test_the_steps_of_one_rank(recorded: tuple[Run, Report]) -> None:
    run, report = recorded
    of_all = step_history(run, report.measured)
    for rank in (0, 1):
        of_one = step_history(run, report.measured, rank)
        assert [window.window for window in of_one] == [window.window for window in of_all]
        durations = run.facts[rank].window("untraced")
        assert durations is not None
        assert {step.rank for window in of_one for step in window.steps} == {rank}
        assert all(step.length_ns == step.longest_ns for window in of_one for step in window.steps)
    assert step_history(run, report.measured, 7) == []


@pytest.fixture(scope="module")
def recorded() -> tuple[Run, Report]:
    return reading.sample("accumulation_without_no_sync")


@pytest.mark.parametrize("width", [40, 78, 196])
def test_each_collective_is_hidden_or_exposed(recorded: tuple[Run, Report], width: int) -> None:
    _, report = recorded
    rows = drawn(overlap(report, width))
    text = " ".join(" ".join(rows).split())
    assert "all_reduce (gradients) in backward" in text
    assert all(len(row) <= width for row in rows)
    bars = [row for row in rows if row.count("█") + row.count("▓") + row.count("▒") > 3]
    assert {"█", "▓", "▒"} <= set(bars[0])
    found = report.measured.overlap.rows[0]
    shown = bars[0].count("▓") / sum(map(bars[0].count, "█▓▒"))
    assert shown == pytest.approx(found.exposed_transfer_ns / found.communication_ns, abs=0.06)
    assert f"{100 * report.measured.account.overlap_share:.1f} % of all communication is hidden." in text


def test_no_communication_has_no_bars(report: Report) -> None:
    assert (
        list(overlap(report.model_copy(update={"measured": report.measured.model_copy(update={"overlap": None})}), 80))
        == []
    )
