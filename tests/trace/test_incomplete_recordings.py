"""Recordings that lost files, or whose files are damaged or were unpacked: what is missing is named, and what to do."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dptune.advice import Report
from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.measure import measure
from dptune.trace import load

from .conftest import SAMPLE

HEALTHY = Path(__file__).resolve().parents[2] / "sample_traces" / "healthy"
LIGHT, DETAILED = "rank-00000.trace.json.gz", "rank-00000.detail.trace.json.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(SAMPLE, tmp_path / "run")


def reported(folder: Path) -> Report:
    run = load([folder])
    return build_report(run, measure(run), Settings())


def _halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("lose", [Path.unlink, _halved])
def test_a_detailed_window_that_is_gone_or_damaged_was_recorded(folder: Path, lose: Callable[[Path], None]) -> None:
    for path in folder.glob("*.detail.trace.json.gz"):
        lose(path)
    report = reported(folder)
    assert report.measured.efficiency.missing["flops"].startswith("the detailed window, which records operator input")
    named = [finding for finding in report.trust.findings if finding.code == "detailed-window-missing"]
    if lose is Path.unlink:
        assert named[0].text.startswith("the trace of the detailed window of ranks 0-1 is missing")


def test_a_whole_recording_lacks_nothing(folder: Path) -> None:
    report = reported(folder)
    assert "detailed-window-missing" not in {finding.code for finding in report.trust.findings}
    assert report.measured.efficiency.known("flops") is not None


@pytest.mark.parametrize("lose", [Path.unlink, _halved])
def test_of_a_rank_whose_trace_is_damaged_others_are_not_asked_for(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(HEALTHY, tmp_path / "run")
    lose(folder / LIGHT)
    (folder / DETAILED).unlink()
    report = reported(folder)
    assert "separating them needs the traces of all ranks" in report.headline.verdict
    assert report.headline.next.startswith("Copy the damaged or missing traces again")


def test_traces_that_were_unpacked_are_read(folder: Path) -> None:
    whole = reported(folder)
    for name in (LIGHT, DETAILED):
        packed = folder / name
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    report = reported(folder)
    assert report.measured.account == whole.measured.account
    assert report.trust == whole.trust
