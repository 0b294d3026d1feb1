from __future__ import annotations

import json

from dptune.advice import Report
from dptune.present.machine.json import text


def test_a_report_comes_back_as_it_was(report: Report, foreign: Report) -> None:
    for one in (report, foreign):
        assert Report.model_validate_json(text(one)) == one


def test_a_hole_is_null_with_its_reason(foreign: Report) -> None:
    step = json.loads(text(foreign))["measured"]["step"]
    assert step["time_ns"] is None
    assert step["missing"]["time_ns"] == "no ProfilerStep in the trace"


def test_any_name_of_a_file_can_be_carried(report: Report) -> None:
    run = report.run.model_copy(update={"sources": ["bad\udc80name", "\x1b[31m", "größe"]})
    page = text(report.model_copy(update={"run": run}))
    assert page.isascii()
    assert "\x1b" not in page
    assert json.loads(page)["run"]["sources"] == ["bad\udc80name", "\x1b[31m", "größe"]


def test_the_same_report_gives_the_same_bytes(report: Report) -> None:
    assert text(report) == text(Report.model_validate_json(text(report)))
    assert text(report).startswith('{\n  "schema_version": ')
