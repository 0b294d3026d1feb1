"""Recordings of dptune-runs by name and by commit, as every command that reads runs takes them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dptune.cli import main
from dptune.commands.shared.recordings import recordings, resolved, resolved_singly
from dptune.errors import UsageError

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SMALL = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "unused-gradients"
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
    assert resolved(["2026-11-22"]) == ["dptune-runs/2026-11-22T10-00-00-eval"]
    assert resolved(["latest"]) == ["dptune-runs/latest"]


def test_a_commit_means_all_recordings_at_it(runs: Path) -> None:
    clean = ["2026-11-20T10-00-00-train", "2026-11-20T11-00-00-train"]
    assert found("01234") == found("0123456789ab") == found("0123456789ab" + 28 * "c") == clean
    assert found("01234+") == ["2026-11-20T12-00-00-train"]
    assert found("01234", f"dptune-runs/{clean[1]}") == clean[:1]  # the other one is what is checked


def test_recordings_of_one_second_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    record = (SAMPLES / "healthy" / "run.json").read_text("utf-8")
    names = ["eval", "train", "train-2", "train-9", "train-10"]
    for name in reversed(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(record, encoding="utf-8")
    assert [each.folder.name for each in recordings([tmp_path])] == names


def test_links_to_folders_are_not_followed(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    shutil.copytree(runs, outside / "others")
    (runs / "loop").symlink_to(runs, target_is_directory=True)
    (runs / "others").symlink_to(outside / "others", target_is_directory=True)
    (runs / "of-others").symlink_to(outside / "others" / next(iter(RECORDED)), target_is_directory=True)
    assert [each.folder for each in recordings([runs])] == [runs / name for name in RECORDED]
    given = runs.parent / "given"
    given.symlink_to(outside / "others", target_is_directory=True)
    assert len(recordings([given])) == len(RECORDED)


@pytest.mark.parametrize("name", ["a/b", "s3://bucket/run", "runs-*", "dptune-runs", "..", "-", "", "~", "x"])
def test_a_path_stays_a_path(runs: Path, name: str) -> None:
    assert resolved([name], ["x"]) == [name]


def test_a_name_that_git_knows_means_its_commit(runs: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *words], cwd=runs.parent, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "trunk")
    git("commit", "-q", "--allow-empty", "-m", "first")
    first = git("rev-parse", "HEAD")
    with pytest.raises(UsageError, match=f"no recording in dptune-runs is of HEAD .commit {first[:12]}.") as refused:
        resolved(["HEAD"])
    assert "dptune history" in refused.value.hint
    record = runs / "2026-11-22T10-00-00-eval" / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "commit": first[:12]}))
    git("commit", "-q", "--allow-empty", "-m", "second")
    assert found("HEAD~1") == found("trunk^") == ["2026-11-22T10-00-00-eval"]
    with pytest.raises(UsageError, match="--all does not exist"):  # no option of git
        resolved(["--all"])


@pytest.mark.parametrize("name", ["ddp.bucket_cap_mb=1", "world_size=8", "env.OMP_NUM_THREADS=4"])
def test_a_setting_without_its_option_is_not_taken_for_a_run(runs: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is a setting, not a run") as refused:
        resolved_singly([name])
    assert refused.value.hint is not None
    assert f"--set {name}" in refused.value.hint
    (runs.parent / name).touch()
    assert resolved([name]) == [name]


def test_a_path_that_exists_wins_over_a_recording(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "2026-11-22T10-00-00-eval"
    (runs.parent / name).touch()
    assert resolved([name, "2026-11-22"]) == [name, f"dptune-runs/{name}"]
    monkeypatch.chdir(runs)  # no recordings from here: what is named is reported where it is read
    assert resolved(["no-such"]) == ["no-such"]


def test_a_command_that_reads_one_run_refuses_a_commit_of_several(runs: Path) -> None:
    assert resolved_singly(["01234+"]) == ["dptune-runs/2026-11-20T12-00-00-train"]
    with pytest.raises(UsageError, match="2 recordings at commit 01234: 2026-11-20T10-00-00-train, 2026-11-20T11"):
        resolved_singly(["01234"])


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        (
            "2026-11-20",
            "3 recordings have names that start with 2026-11-20: 2026-11-20T10-00-00-train",
            "more characters",
        ),
        ("0123", "0123 matches 2 commits: 0123456789ab, 0123ffffffff", "give more digits"),
        ("abcd", "no match among the recordings at abcd: all have uncommitted changes", "name them by abcdabcdabcd+"),
        (
            "0123f+",
            "no match among the recordings at 0123f+: none has uncommitted changes",
            "name them by 0123ffffffff",
        ),
        ("feed", "feed does not exist, and no recording in dptune-runs has that name", "`dptune history` lists"),
        ("eval", "eval does not exist", "did you mean 2026-11-22T10-00-00-eval? `dptune history` lists"),
        ("2026-11-22T10-00-00-evla", "does not exist", "did you mean 2026-11-22T10-00-00-eval"),
        ("abcdabcdabce", "does not exist", "did you mean abcdabcdabcd+?"),
    ],
)
def test_none_or_several_are_an_error_with_a_hint(runs: Path, name: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolved([name])
    assert said in str(raised.value)
    assert hint in (raised.value.hint or "")


def test_the_checked_recording_is_no_baseline_of_itself(runs: Path) -> None:
    with pytest.raises(UsageError, match="every recording at 0123f is being checked, none is left as the baseline"):
        resolved(["0123f"], ["dptune-runs/2026-11-21T10-00-00-train"])


def test_a_baseline_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a user gives it: one run on each side, so there is no verdict, and the findings are compared."""
    for name in ("before", "after"):
        folder = tmp_path / "dptune-runs" / name
        shutil.copytree(SMALL, folder, ignore=shutil.ignore_patterns(".dptune-cache"))
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
    assert "no recording in dptune-runs has that name or commit" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four recordings of untraced steps, two at each of two commits."""
    for number in range(4):
        folder = tmp_path / "dptune-runs" / f"run-{number}"
        kept = shutil.ignore_patterns("*.trace.json.gz", ".dptune-cache")
        shutil.copytree(SAMPLES / "tiny_buckets", folder, ignore=kept)
        record = json.loads((folder / "run.json").read_text("utf-8"))
        written = {**record, "commit": ("0123456789ab", "ba9876543210")[number // 2]}
        (folder / "run.json").write_text(json.dumps(written), encoding="utf-8")
        for path in folder.glob("*.facts.json"):
            facts = json.loads(path.read_text("utf-8"))
            for window in facts["windows"]:
                window["durations_ns"] = [duration + number for duration in window["durations_ns"]]
            path.write_text(json.dumps(facts), encoding="utf-8")
    (tmp_path / "dptune-runs" / "latest").write_text("run-3", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_are_compared_and_listed_by_name_and_commit(timed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def sides(*runs: str) -> list[int]:
        assert main(["compare", *runs, "--no-cache", "--format", "json"]) == 0
        runs_of = [run["side"] for run in json.loads(capsys.readouterr().out)["compared"]["runs"]]
        return [runs_of.count(side) for side in ("A", "B")]

    assert sides("run-0", "latest") == [1, 1]
    assert sides("012345", "ba9876543210") == [2, 2]
    assert main(["compare", "run-0", "012345", "--no-cache"]) == 2
    assert "dptune-runs/run-0 is named on both sides" in capsys.readouterr().err
    assert main(["history", "ba98", "--no-cache", "--format", "paths"]) == 0
    assert [Path(row).name for row in capsys.readouterr().out.splitlines()] == ["run-2", "run-3"]


@pytest.mark.parametrize("command", [["report"], ["whatif"], ["verify", "--set", "ddp.bucket_cap_mb=1"], ["check"]])
def test_every_command_reads_a_recording_by_name(
    timed: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused with near misses where it is none; a commit of several is refused, too."""
    verb, *options = command
    assert main([verb, "run-9", *options]) == 2
    assert "did you mean run-3 or run-2 or run-1 or run-0?" in " ".join(capsys.readouterr().err.split())
    assert main([verb, "0123456789ab", *options]) == 2
    assert "2 recordings at commit 0123456789ab: run-0, run-1" in " ".join(capsys.readouterr().err.split())


def test_a_report_by_the_start_of_a_name(timed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "run-2", "--no-cache", "--section", "files"]) == 0
    assert "dptune-runs/run-2" in capsys.readouterr().out
