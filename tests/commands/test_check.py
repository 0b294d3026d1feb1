from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptune.advice import Advice, Change, Headline, Location, Report, RunSummary, Saving, Severity, Skipped, Trust
from dptune.cli import main
from dptune.finding import Finding
from dptune.measured import AccumulationFigures, InputFigures, MatmulFigures, Measured, StepTime


def advice(severity: Severity) -> Advice:
    saves = Saving(low_ms=1, high_ms=2, low_share=0.1, high_share=0.2, basis="bound", how="by reasoning")
    return Advice(
        rule="DP102",
        slug="no-sync",
        kind="time",
        severity=severity,
        title=f"a problem of severity {severity}",
        why="because",
        changes=[Change(knob="ddp.no_sync", now=False, then=True, at=Location(file="train.py", line=31))],
        saves=saves,
        confidence="high",
        evidence=[],
        numerics="same",
        fingerprint="DP102:ddp",
    )


def report(*severities: Severity, level: str = "sound") -> Report:
    unknown = "not in the trace"
    measured = Measured.only(
        unknown,
        step=StepTime.only(unknown, basis="unprofiled", median_ns=10_000_000, unprofiled_median_ns=10_000_000),
        ranks=[],
        input=InputFigures.only(unknown),
        accumulation=AccumulationFigures.only(unknown),
        matmul=MatmulFigures.only(unknown),
    )
    return Report(
        dptune="0.1",
        run=RunSummary(sources=["x"]),
        headline=Headline(verdict="v", why="w", next="n"),
        trust=Trust.model_validate(
            {"level": level, "findings": [Finding(code="steps", level=level, text="two steps are too few")]}
            if level != "sound"
            else {"level": level, "findings": []}
        ),
        advice=[advice(severity) for severity in severities],
        skipped=[Skipped(rule="DP201", reason=unknown)],
        quiet=[],
        measured=measured,
    )


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> object:
    """A function that fixes the report that `check` will get."""

    def fix(one: Report) -> None:
        monkeypatch.setattr("dptune.commands.check.report_of", lambda *_, **__: one)

    return fix


@pytest.mark.parametrize(
    ("severities", "fail_on", "status"),
    [
        ((), "note", 0),
        (("note",), "note", 1),
        (("note",), "warning", 0),
        (("warning", "note"), "warning", 1),
        (("warning",), "error", 0),
        (("error",), "note", 1),
    ],
)
def test_the_gate_trips_at_the_severity_asked_for(severities, fail_on, status, judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report(*severities))
    assert main(["check", "x", "--fail-on", fail_on]) == status
    said = capsys.readouterr()
    assert said.out.startswith("FAILED: " if status else "PASSED")
    assert said.err == ""


def test_a_warning_trips_it_when_nothing_is_asked_for(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report("note"))
    assert main(["check", "x"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "PASSED with reservations: no advice at 'warning' or worse, but 1 rule could not run on it" in said
    judged(report("warning"))
    assert main(["check", "x"]) == 1


def test_it_names_what_tripped_it_where_and_what_it_saves(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report("error", "note"))
    assert main(["check", "x"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "FAILED: 1 piece of advice at 'warning' or worse." in said
    assert "error: DP102 no-sync: a problem of severity error (train.py:31)" in said
    assert "saves 1.00 to 2.00 ms of each 10.0 ms step (10.0 to 20.0 %)" in said
    assert "severity note" not in said


@pytest.mark.parametrize("severities", [(), ("error",)])
def test_a_run_that_cannot_be_judged_never_passes(severities, judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report(*severities, level="unjudgeable"))
    assert main(["check", "x", "--fail-on", "error"]) == 2
    said = capsys.readouterr().out
    assert said.startswith("UNJUDGEABLE: ")
    assert "unjudgeable: two steps are too few" in said


def test_a_partial_run_is_judged_and_says_what_is_missing(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report(level="partial"))
    assert main(["check", "x"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("PASSED with reservations: no advice at 'warning' or worse, but the run is partial")
    assert "partial: two steps are too few" in said


def test_nothing_is_reserved_where_every_rule_ran(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report().model_copy(update={"skipped": []}))
    assert main(["check", "x"]) == 0
    assert capsys.readouterr().out.startswith("PASSED: no advice at 'warning' or worse.\n")


@pytest.mark.parametrize("severities", [(), ("error",)])
def test_it_names_the_run_it_judged(severities, judged, capsys) -> None:  # type: ignore[no-untyped-def]
    run = RunSummary(sources=["runs/mine"], command="python train.py")
    judged(report(*severities).model_copy(update={"run": run}))
    main(["check", "x"])
    assert "  run: runs/mine (python train.py)\n" in capsys.readouterr().out


def test_json_says_the_outcome_and_what_tripped_it(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report("error", "note"))
    assert main(["check", "x", "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["outcome"], said["fail_on"]) == ("failed", "warning")
    assert [one["fingerprint"] for one in said["tripped"]] == ["DP102:ddp"]
    assert said["trust"]["level"] == "sound"


def test_what_cannot_be_read_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("not a trace", encoding="utf-8")
    assert main(["check", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().out == ""
