from __future__ import annotations

import pytest

from dptune.advice import Report
from dptune.measured import (
    AttributionFigures,
    CommunicationFigures,
    OverlapFigures,
    PhaseFigures,
    SourceFigures,
    SourceTime,
)
from dptune.present.text import text

MS = 1_000_000
EVIL = "nn\x1b[31m[bold]Attention"


@pytest.fixture
def told(report: Report) -> Report:
    """A step of 100 ms that computes 60 ms, with 30 ms of communication of which 9 are hidden."""
    phases = [
        PhaseFigures(
            phase="forward",
            compute_ns=20 * MS,
            communication_ns=0,
            hidden_communication_ns=0,
            exposed_communication_ns=0,
            host_ns=30 * MS,
        ),
        PhaseFigures(
            phase="backward",
            compute_ns=38 * MS,
            communication_ns=30 * MS,
            hidden_communication_ns=9 * MS,
            exposed_communication_ns=21 * MS,
            host_ns=90 * MS,
        ),
        PhaseFigures.only(
            "it was not recorded",
            phase="unknown",
            compute_ns=2 * MS,
            communication_ns=0,
            hidden_communication_ns=0,
            exposed_communication_ns=0,
        ),
    ]
    rows = [
        CommunicationFigures.only(
            "not looked for",
            kind="all_reduce",
            group="default_pg",
            phase="backward",
            calls=16,
            communication_ns=30 * MS,
            hidden_ns=9 * MS,
            exposed_ns=21 * MS,
            most_share=0.3,
        )
    ]
    overlap = OverlapFigures(rows=rows, compute_per_communication=2.0, slowdown=1.234, slowdown_pairs=1138)
    modules = SourceFigures(
        top=[
            SourceTime(name="Linear", compute_ns=30 * MS, step_share=0.3, instances=24),
            SourceTime(name=EVIL, compute_ns=10 * MS, step_share=0.1, instances=1),
        ],
        places=7,
        covered_share=0.75,
    )
    attribution = AttributionFigures(
        rank=0,
        window="detailed",
        steps=1,
        compute_ns=60 * MS,
        compute_share=0.6,
        modules=modules,
        missing={"functions": "no stacks", "annotations": "the script names no ranges"},
    )
    figures = {"phases": phases, "overlap": overlap, "attribution": attribution}
    missing = {name: why for name, why in report.measured.missing.items() if name not in figures}
    return report.model_copy(update={"measured": report.measured.model_copy(update={**figures, "missing": missing})})


def section(page: str, title: str) -> list[str]:
    rows = page.splitlines()
    begin = next(at for at, row in enumerate(rows) if row.startswith(title))
    return rows[begin : next(at for at in range(begin, len(rows)) if not rows[at])]


def test_phases_are_shares_of_the_step_and_the_host_of_its_own_time(told: Report) -> None:
    rows = [" ".join(row.split()) for row in section(text(told), "Phases and overlap")]
    assert "phase compute hidden exposed host" in rows
    assert "forward and other 20.0 % 0 % 0 % 25.0 %" in rows
    assert "backward 38.0 % 9.0 % 21.0 % 75.0 %" in rows
    assert "not known 2.0 % 0 % 0 % [a]" in rows
    assert "[a] not measured: it was not recorded" in rows
    assert "all_reduce default_pg backward 8 9.0 % 21.0 % 30.0 %" in rows  # 16 calls in a step of each of two ranks
    said = " ".join(rows)
    assert "Compute-to-communication ratio, waiting included: 2.00." in said
    assert "Compute takes 1.23x as long when overlapped with communication (1,138 matched operations)." in said


def test_sources_say_how_many_modules_and_how_much_they_cover(told: Report) -> None:
    rows = [" ".join(row.split()) for row in section(text(told), "Compute time by source")]
    assert "Linear (24 modules) 30.0 %" in rows
    assert "and 5 more; together 75.0 % of all compute" in rows
    assert not any(row.startswith("function share") for row in rows)
    assert "1 step of its detailed window; compute takes 60.0 % of it." in " ".join(rows)


def test_a_name_cannot_write_to_the_terminal(told: Report) -> None:
    assert "\x1b" not in text(told)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_both_fit_the_page(told: Report, width: int) -> None:
    page = text(told, width)
    for title in ("Phases and overlap", "Compute time by source"):
        assert all(len(row) <= width for row in section(page, title))


def test_what_is_missing_says_why(report: Report, foreign: Report) -> None:
    said = " ".join(" ".join(section(text(report), "Phases and overlap")).split())
    assert "Phases not measured: no second rank was read" in said
    assert "Overlap not measured: no second rank was read" in said
    told = " ".join(" ".join(section(text(foreign), "Compute time by source")).split())
    assert "not measured: these traces were not recorded by dptune" in told


def test_few_pairs_are_said_and_no_slowdown_is_made_up(told: Report) -> None:
    overlap = OverlapFigures.only("seen both ways: 3", rows=[], compute_per_communication=2.0)
    page = text(told.model_copy(update={"measured": told.measured.model_copy(update={"overlap": overlap})}))
    said = " ".join(" ".join(section(page, "Phases and overlap")).split())
    assert "Slowdown of compute by communication: not measured: seen both ways: 3." in said


def test_what_issued_a_collective_is_named_where_several_did(told: Report) -> None:
    (row,) = told.measured.overlap.rows
    rows = [row.model_copy(update={"purpose": purpose}) for purpose in ("gradients", "sharding", "other", None)]
    shown = text(_with(told, rows))
    assert [line.split("default_pg")[0].strip() for line in shown.splitlines() if "default_pg" in line] == [
        "all_reduce (DDP)",
        "all_reduce (FSDP)",
        "all_reduce",
        "all_reduce",
    ]
    assert "(DDP)" not in text(_with(told, rows[:1]))


def _with(told: Report, rows: list[CommunicationFigures]) -> Report:
    overlap = told.measured.overlap.model_copy(update={"rows": rows})
    return told.model_copy(update={"measured": told.measured.model_copy(update={"overlap": overlap})})


def test_communication_that_no_step_launched_says_so_in_place_of_a_number_of_calls(told: Report) -> None:
    (row,) = told.measured.overlap.rows
    unlaunched = row.model_copy(update={"kind": "p2p", "calls": 0})
    page = " ".join(text(_with(told, [row, unlaunched])).split())
    assert "p2p default_pg backward [a] 9.0 % 21.0 % 30.0 %" in page
    assert "[a] not measured: launched before the first traced step, or its launch was not recorded" in page


def test_why_phases_are_not_known_is_said_once(told: Report) -> None:
    reason = "it looks like inference"
    measured = told.measured
    rows = [
        row.model_copy(update={"phase": None, "missing": {**row.missing, "phase": reason}})
        for row in measured.overlap.rows
    ]
    without = measured.model_copy(
        update={
            "phases": None,
            "missing": {**measured.missing, "phases": reason},
            "overlap": measured.overlap.model_copy(update={"rows": rows}),
        }
    )
    lines = section(text(told.model_copy(update={"measured": without})), "Phases and overlap")
    assert " ".join(lines).count(reason) == 1
    assert "kind group calls hidden exposed overlap" in [" ".join(line.split()) for line in lines]
