"""The walk-throughs show what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dptune.present.ink import paint
from dptune.present.sections.whatif import page
from dptune.present.text import first_screen, sections
from dptune.whatif.predicting import predict

from .. import reading  # noqa: TID252 - tests are no installed package

DOCS = Path(__file__).parents[2] / "docs"


def test_eight_gpus_the_first_screen_is_current(real_traces: Path) -> None:
    page_text = (DOCS / "eight-gpus.md").read_text(encoding="utf-8")
    report = reading.reported(real_traces / "nanogpt_8xh100")
    (shown,) = re.findall(r"```text\n(.*?)\n```", page_text, re.DOTALL)
    assert shown in first_screen(report)
    (lag,) = re.findall(r"behind the other (\S+ ms)", page_text)
    assert f"What causes the other {lag}" in " ".join(shown.split())


@pytest.mark.thorough  # replays eight ranks; tests/whatif predicts the same of fewer
def test_eight_gpus_the_prediction_is_current(real_traces: Path) -> None:
    page_text = (DOCS / "eight-gpus.md").read_text(encoding="utf-8")
    run, report = reading.run_and_report_of(real_traces / "nanogpt_8xh100")
    (factor, rows) = re.findall(
        r"^\$ dptune whatif nanogpt_8xh100 --set host\.times=(\S+)\n(.*?)\n```", page_text, re.M | re.S
    )[0]
    printed = paint(page(predict(run, report.measured, [{"host.times": float(factor)}]), 80), colour=False)
    assert rows in printed


def test_fsdp2_the_rows_of_its_units_are_current() -> None:
    page_text = (DOCS / "fsdp2.md").read_text(encoding="utf-8")
    _, report = reading.sample("gpu/ranks-nccl-fsdp")
    (shown,) = re.findall(r"```text\n(.*?)\n```", page_text, re.DOTALL)
    printed = sections(report, ["fsdp"]).splitlines()
    assert len(shown.splitlines()) == 6
    assert set(shown.splitlines()) <= set(printed)
