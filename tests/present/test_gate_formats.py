"""The outcome of `dptune check` for CI systems: annotations, JUnit, Markdown; with names that would break each."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from dptune.advice import Advice, Change, Evidence, Impact, Location, Report, Saving, Skipped, Trust, Verified
from dptune.check.result import Budget, Gate, PassedOver, Regression
from dptune.finding import Finding
from dptune.present.ink import paint
from dptune.present.machine import github, junit, markdown
from dptune.present.sections.gate import budget_value, opening, page
from dptune.present.text import first_screen

HOSTILE = "a|b <script>alert(1)</script> [x](y) `c` \x1b[31m\u202e 100% ::error::, \ud800 @you\n## big"


def advice(impact: Impact = "high", title: str = "made up", number: int = 1) -> Advice:
    saves = Saving(low_ms=1, high_ms=2, low_share=0.1, high_share=0.2, basis="bound", how="by reasoning")
    return Advice(
        rule=f"DP1{number:02d}",
        slug="made-up",
        kind="time",
        impact=impact,
        title=title,
        why="because",
        changes=[Change(knob="ddp.no_sync", now=False, then=True, at=Location(file="src/a,b:c.py", line=31))],
        saves=saves,
        confidence="high",
        evidence=[],
        numerics="same",
        fingerprint=f"DP1{number:02d}:x",
    )


def gate(**more: Any) -> Gate:
    own = {"dptune": "0.1", "outcome": "failed", "runs": ["runs/one (python train.py)"], "fail_on": "medium"}
    return Gate(**{**own, "step_ns": 10_000_000, "tripped": [], "trust": Trust(level="sound", findings=[]), **more})


BUDGETS = [
    Budget(name="step_ms", what="step time in ms", limit=12.0, value=10.0),
    Budget(name="idle_share", what="idle time", limit=0.1, value=0.25),
    Budget(name="peak_memory_gb", what="memory in GB", limit=70, value=None, why_missing="no device"),
]
SLOWER = Regression(
    objective="time per step",
    limit_share=0.05,
    outcome="failed",
    ratio=1.1,
    low_ratio=1.08,
    high_ratio=1.12,
    text="It is",
)


def test_an_upper_bound_above_half_of_the_step_is_no_saving_in_any_format():
    one = advice()
    assert one.saves is not None
    wide = one.saves.model_copy(update={"low_ms": 0.0, "high_ms": 6.0, "low_share": 0.0, "high_share": 0.6})
    tripped = gate(tripped=[one.model_copy(update={"saves": wide})])
    words = "unknown; upper bound 6.00 ms of each 10.0 ms step"
    assert f"saving: {words} (60.0 %), not predicted" in " ".join(paint(page(tripped, 200), False).split())
    assert f"Saving: {words} (60.0 %), not predicted" in junit.text(tripped)
    assert f"made up. Saving: {words} (60.0 %25), not predicted" in github.text(tripped)
    assert f"| {words} (60.0 %), not predicted" in markdown.text(tripped)
    risk = one.model_copy(update={"remedy": "Copy the tensors."})
    assert "change: Copy the tensors." in " ".join(paint(page(gate(tripped=[risk]), 200), False).split())
    late = one.model_copy(update={"remedy": "Find out what rank 2 does."})
    assert "check: Find out what rank 2 does." in " ".join(paint(page(gate(tripped=[late]), 200), False).split())
    assert "saves 1.00 to 2.00 ms of each" in " ".join(paint(page(gate(tripped=[one]), 200), False).split())


def test_what_was_proven_is_told_in_every_format():
    proof = Verified(
        name="x",
        changes={"ddp.no_sync": True},
        advice="DP101",
        outcome="better",
        reason="x",
        objective="time per sample",
        ratio=0.656,
        low_ratio=0.6,
        high_ratio=0.7,
        trials=6,
        learning="alike",
        command="",
    )
    told = gate(tripped=[advice(), advice(number=2)], verified=[proof])
    words = "verified: faster: 34.4 % less time per sample (interval 30.0-40.0 %, 6 trials per side)"
    then = "upper bound: 1.00 to 2.00 ms of each 10.0 ms step (10.0 to 20.0 %)"
    lines = " ".join(paint(page(told, 200), False).split())
    pages = [*(one.text(told) for one in (github, junit, markdown)), lines]
    for shown in pages:
        lower = shown.replace("%25", "%").lower()
        assert lower.count(words) == 1
        assert lower.count(then) == 1
        assert lower.index(words) < lower.index(then)


def test_the_opening_counts_what_broke():
    told = gate(tripped=[advice()], budgets=BUDGETS, regression=SLOWER)
    assert opening(told) == (
        "FAILED: 1 finding of at least medium impact and medium confidence, 1 budget broken, slower than the baseline."
    )
    fine = gate(outcome="passed", budgets=BUDGETS[:1], regression=SLOWER.model_copy(update={"outcome": "passed"}))
    assert opening(fine) == (
        "PASSED: no findings of at least medium impact and medium confidence, 1 budget kept, not slower than the "
        "baseline beyond the limit."
    )
    assert opening(gate(outcome="unjudgeable", budgets=BUDGETS)) == (
        "UNJUDGEABLE: 1 budget could not be measured, so it does not pass."
    )
    assert opening(gate(outcome="passed", fail_on="never")) == "PASSED: findings are not checked."


def test_annotations_stand_at_the_lines_of_the_script():
    first, second = github.text(gate(tripped=[advice("medium")])).splitlines()
    assert first == "::error title=dptune check::FAILED: 1 finding of at least medium impact and medium confidence."
    assert second.startswith(
        "::warning file=src/a%2Cb%3Ac.py,line=31,title=DP101 made-up::made up. Saves 1.00 to 2.00 ms"
    )
    assert second.endswith(" because")


def test_what_github_would_drop_is_counted():
    """Ten of a level are shown: with 12 errors, the first and eight others, and how many more."""
    many = [advice("high", number=n) for n in range(11)] + [advice("low", number=n) for n in range(20, 25)]
    lines = github.text(gate(tripped=many)).splitlines()
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == github.MOST
    assert errors[-1].startswith("::error title=dptune::3 more not shown: see the report")
    assert len([line for line in lines if line.startswith("::notice")]) == 5
    exact = github.text(gate(tripped=many[:9])).splitlines()
    assert len(exact) == github.MOST
    assert "more not shown" not in exact[-1]


def test_budgets_and_a_baseline_are_annotations_too():
    lines = github.text(gate(budgets=BUDGETS, regression=SLOWER)).splitlines()[1:]
    assert lines == [
        "::error title=budget idle_share::broken: idle_share, idle time: 0.25, at most 0.1",
        "::error title=budget peak_memory_gb::not checked: peak_memory_gb, memory in GB: not measured: no device",
        "::error title=slower than the baseline?::It is",
    ]


def test_why_it_cannot_be_judged_is_an_annotation_and_comes_before_what_may_be_dropped():
    findings = [Finding(level="unjudgeable", code="steps", text="two steps"), Finding(level="info", code="x", text="y")]
    told = gate(outcome="unjudgeable", trust=Trust(level="unjudgeable", findings=findings), budgets=BUDGETS[1:2])
    lines = github.text(told.model_copy(update={"tripped": [advice(number=n) for n in range(20)]})).splitlines()
    assert lines[1] == "::error title=why there is no verdict::two steps"
    assert lines[2].startswith("::error title=budget idle_share")
    assert len(lines) == github.MOST


def test_what_is_left_open_is_said_whatever_the_outcome():
    told = gate(outcome="failed", regression=SLOWER, reservations=["budgets were not judged"])
    assert "::notice title=dptune check::but: budgets were not judged" in github.text(told)
    assert "\n- but: budgets were not judged\n" in markdown.text(told)
    assert "  but: budgets were not judged" in ["".join(span.text for span in line) for line in page(told, 80)]


def test_a_rule_whose_advice_is_below_the_gate_has_a_case_that_passes():
    (suite,) = ElementTree.fromstring(junit.text(gate(below=["DP603"], quiet=["DP101"])))
    assert [(case.get("name"), len(case)) for case in suite] == [("DP603", 0), ("DP101", 0)]


def test_no_text_of_a_trace_is_a_command_of_its_own():
    told = github.text(gate(tripped=[advice(title=HOSTILE)], runs=[HOSTILE]))
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in told.splitlines())
    assert len(told.splitlines()) == 2
    assert "100%25" in told
    assert "\x1b" not in told
    assert "\u202e" not in told


def test_junit_has_a_case_for_each_rule_budget_and_the_baseline():
    told = gate(
        tripped=[advice()],
        passed_over=[PassedOver(advice=advice(number=2), why="accepted")],
        quiet=["DP501", "DP502"],
        skipped=[Skipped(rule="DP103", reason="no links")],
        budgets=BUDGETS,
        regression=SLOWER.model_copy(update={"outcome": "inconclusive"}),
    )
    whole = ElementTree.fromstring(junit.text(told))
    (suite,) = whole
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("9", "3", "3")
    failed = {case.get("name"): case.find("failure") for case in suite if case.find("failure") is not None}
    assert set(failed) == {"DP101", "idle_share", "peak_memory_gb"}
    first = next(case for case in suite if case.get("name") == "DP101")
    assert (first.get("file"), first.get("line"), first.get("classname")) == ("src/a,b:c.py", "31", "dptune.rules")
    assert "Saves 1.00 to 2.00 ms" in (failed["DP101"].text or "")
    skipped = {
        case.get("name"): case.find("skipped").get("message") for case in suite if case.find("skipped") is not None
    }
    assert skipped == {
        "DP102": "accepted: made up",
        "DP103": "no links",
        "time per step": "inconclusive: It is",
    }


def test_a_rule_is_one_case_however_it_ends():
    told = gate(
        tripped=[advice(title="one"), advice(title="other")],
        passed_over=[PassedOver(advice=advice(title="third"), why="accepted")],
        skipped=[Skipped(rule="DP101", reason="no links in one of the runs")],
    )
    (case,) = ElementTree.fromstring(junit.text(told)).iter("testcase")
    (failure,) = case
    assert (case.get("name"), failure.get("message")) == ("DP101", "one; other")


def test_what_decides_nothing_fails_everywhere_where_that_is_asked_for():
    undecided = SLOWER.model_copy(update={"outcome": "inconclusive"})
    for fails, level, failures in ((False, "warning", "0"), (True, "error", "1")):
        told = gate(outcome="failed" if fails else "inconclusive", regression=undecided, inconclusive_fails=fails)
        assert github.text(told).splitlines()[1].startswith(f"::{level} title=slower than the baseline?")
        assert ElementTree.fromstring(junit.text(told)).get("failures") == failures


@pytest.mark.parametrize(
    ("value", "limit", "shown"),
    [(0.104, 0.1, "0.104"), (12.04, 12, "12.04"), (0.00412, 0.005, "0.00412"), (1234.4, 1234, "1234.4")],
)
def test_a_budget_shows_on_which_side_of_its_limit_it_is(value, limit, shown):
    assert budget_value(Budget(name="x", what="y", limit=limit, value=value)) == shown


@pytest.mark.parametrize("level", ["unjudgeable", "sound"])
def test_junit_of_hostile_text_is_whole(level):
    trust = Trust(level=level, findings=[Finding(code="x", level="unjudgeable", text=HOSTILE)])
    outcome = "unjudgeable" if level == "unjudgeable" else "failed"
    whole = ElementTree.fromstring(junit.text(gate(outcome=outcome, tripped=[advice(title=HOSTILE)], trust=trust)))
    messages = [found.get("message", "") for found in whole.iter("failure")]
    assert any("<script>" in message for message in messages)
    assert len(messages) == (2 if level == "unjudgeable" else 1)


def test_no_row_of_junit_is_a_command_to_the_log_of_a_job():
    """A name with a line break stays in one row; a row that begins like a command does not."""
    evil = advice(title="::error::a\n::error::b")
    at = Location(file="x\n::error::c\r\n/train.py", line=3)
    changes = [Change(knob="ddp.no_sync", now=False, then=True, at=at)]
    told = junit.text(gate(tripped=[evil.model_copy(update={"changes": changes})]))
    assert not [row for row in told.splitlines() if row.lstrip().startswith("::")]
    assert "\\x0a::error::c" in told
    (failure,) = ElementTree.fromstring(told).iter("failure")
    assert (failure.text or "").startswith(": :error::a\\x0a::error::b\nbecause\n")


def test_markdown_shows_tables():
    told = markdown.text(
        gate(
            tripped=[advice()],
            budgets=BUDGETS,
            regression=SLOWER,
            passed_over=[PassedOver(advice=advice(number=2), why="accepted")],
        )
    )
    assert told.startswith("## dptune: FAILED: 1 finding of at least medium impact and medium confidence")
    assert "| high | high | DP101 made-up | made up |" in told
    assert "| idle\\_share, idle time | 0.25 | 0.1 | **no** |" in told
    assert "Against the baseline: **failed**. It is" in told
    assert "- not counted (accepted): DP102 made up" in told


def test_markdown_of_hostile_text_keeps_its_rows():
    told = markdown.text(gate(tripped=[advice(title=HOSTILE), advice(title="x" * 10_000)], runs=[HOSTILE]))
    rows = [row for row in told.splitlines() if row.startswith("| high")]
    assert len(rows) == 2
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)
    assert "<script>" not in told
    assert "@you" not in told
    assert len([row for row in told.splitlines() if row.startswith("##")]) == 1
    assert max(map(len, told.splitlines())) < 2000


def test_a_rule_that_one_run_could_not_run_is_one_case():
    """Of two runs one has advice below the gate, and the other could not ask."""
    told = gate(below=["DP101"], skipped=[Skipped(rule="DP101", reason="no links in one of the runs")])
    assert [case.get("name") for case in ElementTree.fromstring(junit.text(told)).iter("testcase")] == ["DP101"]


@pytest.mark.long
def test_a_thousand_findings_and_long_names_stay_below_what_github_drops():
    findings = [Finding(code="x", level="partial", text=f"{n} " + "y" * 600) for n in range(1500)]
    trust = Trust(level="partial", findings=findings)
    told = gate(trust=trust, runs=["r" * 600] * 1500, tripped=[advice(title="z" * 200_000)])
    assert len(markdown.text(told)) < 2**20 / 8
    assert "- and 1450 more" in markdown.text(told)
    assert max(map(len, github.text(told).splitlines())) < 5000


def test_markdown_counts_what_it_leaves_out():
    told = markdown.text(gate(tripped=[advice(number=n) for n in range(60)]))
    assert told.count("| high | high |") == markdown.MOST
    assert "and 10 more" in told


@pytest.mark.parametrize(
    ("title", "value", "where"),
    [
        ("`log_step` (train.py:44) takes 20 % of each step", "loop.py:3", "file=train.py,line=44,"),
        ("a step waits for its loader", "src/data.py:12", "file=src/data.py,line=12,"),
        ("a step waits for its loader", "no line", ""),
    ],
)
def test_an_annotation_without_a_change_stands_at_the_line_that_the_advice_names(title, value, where):
    seen = Evidence(label="loader created at", value=value)
    one = advice(title=title).model_copy(update={"changes": [], "evidence": [seen]})
    (line,) = [row for row in github.text(gate(tripped=[one])).splitlines() if "DP101" in row]
    assert line.startswith(f"::error {where}title=DP101 made-up::")


def test_markdown_has_the_first_screen_of_the_run(report: Report) -> None:
    shown = markdown.text(gate(), [(report, True)])
    assert f"\n```text\n{first_screen(report)}```\n" in shown
    assert "git apply" in shown
    assert "git apply" not in markdown.text(gate(), [(report, False)])  # the script is not here
    quoting = report.model_copy(update={"headline": report.headline.model_copy(update={"next": "```` end"})})
    assert "\n`````text\n" in markdown.text(gate(), [(quoting, True)])  # a fence that nothing in the block ends
