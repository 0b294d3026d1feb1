"""A recording with facts that do not fit: what needs them says so, everything else is judged as before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dptune.advice import Report
from dptune.commands.shared.reading import report_of
from dptune.whatif.predicting import predict

from .. import reading  # noqa: TID252 - tests are no installed package

RECORDED = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "late-rank"
LOADERS = "`loaders` of rank 0 could not be read: loaders[0].num_workers = -3, which no run has"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 0 has a loader with -3 workers."""
    place = shutil.copytree(RECORDED, tmp_path_factory.mktemp("odd") / "run")
    path = place / "rank-00000.facts.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "loaders": [{"num_workers": -3}]}))
    return place


@pytest.fixture(scope="module")
def odd(folder: Path) -> Report:
    return report_of([str(folder)], jobs=1, cached=False)


def test_the_rules_that_need_the_fact_are_skipped_with_the_reason(odd: Report) -> None:
    whole = reading.reported(RECORDED)
    asked = {advice.rule for advice in whole.advice} | set(whole.quiet)
    skipped = {each.rule for each in odd.skipped if each.reason == LOADERS}
    assert {"DP501", "DP504"} <= skipped & asked
    assert {advice.rule for advice in odd.advice} | set(odd.quiet) == asked - skipped
    (finding,) = [each for each in odd.trust.findings if each.code == "facts-left-out"]
    assert (finding.level, odd.trust.level) == ("partial", "partial")


def test_the_figures_that_do_not_need_it_stay(odd: Report) -> None:
    whole = reading.reported(RECORDED)
    assert odd.measured.step == whole.measured.step
    assert odd.measured.account == whole.measured.account
    assert [advice.title for advice in odd.advice if advice.rule == "DP701"] == [
        advice.title for advice in whole.advice if advice.rule == "DP701"
    ]


def test_nothing_is_predicted_from_its_default(folder: Path, odd: Report) -> None:
    run, report = reading.run_and_report_of(folder)
    found = predict(run, report.measured, [{"ddp.bucket_cap_mb": 50}])
    assert found.predictions[0].missing["step_ns"] == LOADERS
    assert all(advice.saves is None or advice.saves.basis != "replayed" for advice in odd.advice)
