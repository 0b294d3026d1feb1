"""Files in which the windows of a recording have the names they had up to schema version 0.2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptune.commands.shared.reading import report_of
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "healthy"
FORMER = {"untraced": "unprofiled", "light": "lean", "detailed": "rich"}


def former(text: str, version: str = "0.2") -> str:
    """The same file as an older dptune wrote it."""
    for name, old in FORMER.items():
        text = text.replace(f'"{name}"', f'"{old}"').replace(f'"{name}_', f'"{old}_')
    return text.replace('"schema_version": "0.3"', f'"schema_version": "{version}"')


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_an_older_recording_reads_as_it_did(version: str, tmp_path: Path) -> None:
    for name, kind in (("run.json", RunRecord), ("rank-00000.facts.json", Facts)):
        text = (SAMPLE / name).read_text(encoding="utf-8")
        old = former(text, version)
        assert '"lean"' in old
        (tmp_path / name).write_text(old, encoding="utf-8")
        read, today = json_files.read(tmp_path / name, kind), json_files.read(SAMPLE / name, kind)
        read.schema_version = today.schema_version
        assert read == today


def test_a_file_of_today_may_say_lean(tmp_path: Path) -> None:
    document = json.loads((SAMPLE / "run.json").read_text(encoding="utf-8"))
    document["command"] = ["python", "train.py", "lean"]
    (tmp_path / "run.json").write_text(json.dumps(document), encoding="utf-8")
    assert json_files.read(tmp_path / "run.json", RunRecord).command[-1] == "lean"


@pytest.mark.long
def test_an_older_report_reads_as_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dptune.cli import main
    from dptune.commands.shared.reading import _report

    assert main(["report", str(SAMPLE), "--no-cache", "--format", "json", "-o", str(tmp_path / "new.json")]) == 0
    text = (tmp_path / "new.json").read_text(encoding="utf-8")
    (tmp_path / "old.json").write_text(former(text), encoding="utf-8")
    old, new = _report(tmp_path / "old.json"), _report(tmp_path / "new.json")
    assert old.measured.step == new.measured.step
    assert (
        old.measured.step.untraced_median_ns == report_of([str(SAMPLE)], cached=False).measured.step.untraced_median_ns
    )
