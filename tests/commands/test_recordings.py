"""Recordings of dptune-runs by name and by commit, as `dptune check --baseline` takes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dptune.cli import main
from dptune.commands.shared.recordings import resolved
from dptune.errors import UsageError

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RECORDED = {
    "2026-11-20T10-00-00-train": "0123456789ab",
    "2026-11-20T11-00-00-train": "0123456789ab",
    "2026-11-20T12-00-00-train": "0123456789ab+",
    "2026-11-21T10-00-00-train": "0123ffffffff",
    "2026-11-21T11-00-00-train": "abcdabcdabcd+",
    "2026-11-22T10-00-00-eval": "",
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records alone, which names are resolved by."""
    record = json.loads((SAMPLES / "healthy" / "run.json").read_text("utf-8"))
    for name, commit in RECORDED.items():
        folder = tmp_path / "dptune-runs" / name
        folder.mkdir(parents=True)
        written = json.dumps({**record, "commit": commit, "recorded": f"{name[:10]}T{name[11:13]}:00:00+00:00"})
        (folder / "run.json").write_text(written, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "dptune-runs"


def found(name: str, *besides: str) -> list[str]:
    return [Path(run).name for run in resolved([name], besides)]


def test_a_recording_by_its_name_or_the_start_of_it(runs: Path) -> None:
    assert found("2026-11-20T11-00-00-train") == ["2026-11-20T11-00-00-train"]
    assert found("2026-11-22") == ["2026-11-22T10-00-00-eval"]
    assert resolved(["2026-11-22"], []) == ["dptune-runs/2026-11-22T10-00-00-eval"]


def test_a_commit_means_all_recordings_at_it(runs: Path) -> None:
    clean = ["2026-11-20T10-00-00-train", "2026-11-20T11-00-00-train"]
    assert found("01234") == found("0123456789ab") == found("0123456789ab" + 28 * "c") == clean
    assert found("01234+") == ["2026-11-20T12-00-00-train"]
    assert found("01234", f"dptune-runs/{clean[1]}") == clean[:1]  # the other one is what is checked


@pytest.mark.parametrize("name", ["a/b", "s3://bucket/run", "runs-*", "dptune-runs", "x"])
def test_a_path_stays_a_path(runs: Path, name: str) -> None:
    assert resolved([name], ["x"]) == [name]


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("2026-11-20", "3 recordings have names that start with 2026-11-20: 2026-11-20T10-00-00-train", "more of the"),
        ("0123", "0123 matches 2 commits: 0123456789ab, 0123ffffffff", "give more digits"),
        ("abcd", "no match among the recordings at abcd: all have uncommitted changes", "--baseline abcdabcdabcd+"),
        ("0123f+", "no match among the recordings at 0123f+: none has uncommitted changes", "--baseline 0123ffffffff"),
        ("feed", "no recording in dptune-runs has the name or the commit feed", "`dptune history` lists"),
    ],
)
def test_none_or_several_are_an_error_with_a_hint(runs: Path, name: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolved([name], [])
    assert said in str(raised.value)
    assert hint in (raised.value.hint or "")


def test_the_checked_recording_is_no_baseline_of_itself(runs: Path) -> None:
    with pytest.raises(UsageError, match="every recording at 0123f is being checked, none is left as the baseline"):
        resolved(["0123f"], ["dptune-runs/2026-11-21T10-00-00-train"])


@pytest.mark.long
def test_a_baseline_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a user gives it: one run on each side, so there is no verdict, and the findings are compared."""
    for name in ("before", "after"):
        folder = tmp_path / "dptune-runs" / name
        shutil.copytree(SAMPLES / "tiny_buckets", folder, ignore=shutil.ignore_patterns(".dptune-cache"))
        record = json.loads((folder / "run.json").read_text("utf-8"))
        commit = {"before": "0123456789ab", "after": "ba9876543210"}[name]
        (folder / "run.json").write_text(json.dumps({**record, "commit": commit}), encoding="utf-8")
    for path in (tmp_path / "dptune-runs" / "after").glob("*.facts.json"):
        facts = json.loads(path.read_text("utf-8"))
        for window in facts["windows"]:
            window["durations_ns"] = [int(1.01 * duration) for duration in window["durations_ns"]]
        path.write_text(json.dumps(facts), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "dptune-runs/after", "--no-cache", "--baseline", "0123456", "--format", "json"]) == 0
    gate = json.loads(capsys.readouterr().out)
    assert gate["baseline"][0].startswith("dptune-runs/before")
    assert {over["why"] for over in gate["passed_over"]} == {"the baseline has it too"}
    assert main(["check", "dptune-runs/after", "--no-cache", "--baseline", "feed"]) == 2
    assert "no recording in dptune-runs has the name or the commit feed" in " ".join(capsys.readouterr().err.split())
