"""`dptune history`: recordings one after another."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dptune.cli import main
from dptune.history import Entry, History
from dptune.present.ink import paint
from dptune.present.sections.history import page
from dptune.runfile.commit import checked_out

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RECORDED = Path(__file__).parents[1] / "rules" / "recorded" / "runs"  # small ones
pytestmark = pytest.mark.usefixtures("read_once")


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> History:
    assert main(["history", *words, "--no-cache", "--format", "json"]) == 0
    return History.model_validate_json(capsys.readouterr().out)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two recordings and what is none; run.json of the second says its commit."""
    folder = tmp_path / "dptune-runs"
    for run in (RECORDED / "workers-restart", RECORDED / "same-order"):
        shutil.copytree(run, folder / run.name, ignore=shutil.ignore_patterns(".dptune-cache", "*.detail.*"))
    (folder / "verified").mkdir()
    (folder / "latest").write_text("same-order\n", encoding="utf-8")
    record = folder / "same-order" / "run.json"
    values = {
        **json.loads(record.read_text("utf-8")),
        "commit": "0123456789ab+",
        "recorded": "2026-11-23T00:00:00+00:00",
    }
    record.write_text(json.dumps(values), encoding="utf-8")
    return folder


def test_recordings_are_listed_by_their_time_with_the_figures_of_their_reports(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = listed(capsys, str(runs)).entries
    assert main(["report", str(runs / "workers-restart"), "--no-cache", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert first.folder == str(runs / "workers-restart")
    assert first.step_ns == report["measured"]["step"]["time_ns"]
    assert first.samples_per_s == pytest.approx(report["measured"]["samples_per_step"] / (first.step_ns / 1e9))
    assert (first.label, first.findings) == ("Slow steps", ["DP502"])
    assert (first.commit, second.commit) == ("", "0123456789ab+")


def test_times_of_several_zones_are_in_order(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, recorded in (
        ("workers-restart", "2026-11-23T01:00:00+02:00"),
        ("same-order", "2026-11-23T00:30:00+00:00"),
    ):
        file = runs / name / "run.json"
        values = {**json.loads(file.read_text("utf-8")), "recorded": recorded}
        file.write_text(json.dumps(values), encoding="utf-8")
    assert [Path(entry.folder).name for entry in listed(capsys, str(runs)).entries] == [
        "workers-restart",
        "same-order",
    ]
    file = runs / "same-order" / "run.json"
    file.write_text(file.read_text("utf-8").replace("2026-11-23T00:30:00+00:00", "2026-11-22T23:30:00+01:00"), "utf-8")
    assert [Path(entry.folder).name for entry in listed(capsys, str(runs)).entries] == [
        "same-order",
        "workers-restart",
    ]


def test_the_text_names_the_commands_to_open_and_compare(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(runs), "--no-cache"]) == 0
    printed = capsys.readouterr().out
    assert "01234567+" in printed
    assert "Slow steps" in printed
    words = " ".join(printed.replace("\\\n", " ").split())  # as a shell reads it
    assert f"Open dptune report {runs}/same-order" in words
    assert f"Compare dptune compare {runs}/workers-restart {runs}/same-order" in words
    assert "███" not in printed  # the verdict is whole in place of bars


def test_bars_are_drawn_where_nothing_is_cut_for_them() -> None:
    entry = Entry(folder="a", recorded="2026-11-22", ranks=2, step_ns=1_000_000, label="Communication-bound")
    history = History(dptune="0", entries=[entry.model_copy(update={"folder": "a-recording-of-a-long-name"})])
    assert "████████" in paint(page(history, 120), colour=False)
    narrow = paint(page(history, 70), colour=False)
    assert "a-recording-of-a-long-name" in narrow
    assert "Communication-bound" in narrow
    assert "█" not in narrow


def test_only_recordings_of_the_same_number_of_ranks_are_compared() -> None:
    entries = [Entry(folder=name, recorded="2026-11-22", ranks=ranks) for name, ranks in (("a", 2), ("b", 1), ("c", 2))]
    both = paint(page(History(dptune="0", entries=entries), 80), colour=False)
    assert "dptune compare a c" in both
    assert "compare" not in paint(page(History(dptune="0", entries=entries[:2]), 80), colour=False)


def test_only_recordings_of_the_same_script_are_compared() -> None:
    commands = {"a": "torchrun a.py --batch 64", "b": "python b.py", "c": "torchrun 'runs of a/a.py' --batch 128"}
    entries = [Entry(folder=name, recorded="2026-11-22", ranks=2, command=said) for name, said in commands.items()]
    assert "dptune compare a c\n" in paint(page(History(dptune="0", entries=entries), 80), colour=False)
    assert "dptune compare" not in paint(page(History(dptune="0", entries=entries[:2]), 80), colour=False)


def test_bars_give_way_to_names_of_wide_characters() -> None:
    entry = Entry(folder="名前" * 14, recorded="2026-11-22", ranks=2, step_ns=1_000_000, label="Communication-bound")
    assert "名前" * 14 in paint(page(History(dptune="0", entries=[entry]), 100), colour=False)


def test_paths_are_those_that_can_be_read(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = runs / "broken"
    broken.mkdir()
    shutil.copy(SAMPLES / "healthy" / "run.json", broken)
    assert main(["history", str(runs), "--no-cache", "--format", "paths"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(runs / "workers-restart"), str(runs / "same-order")]
    (entry,) = [one for one in listed(capsys, str(runs)).entries if one.error]
    assert Path(entry.folder).name == "broken"
    assert main(["history", str(runs), "--no-cache"]) == 0
    assert "".join(f"broken: {entry.error}".split()) in "".join(capsys.readouterr().out.split())


def test_the_latest_are_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = listed(capsys, str(runs), "--last", "1")
    assert [Path(entry.folder).name for entry in history.entries] == ["same-order"]
    assert history.earlier == 1
    assert len(listed(capsys, str(runs), "--last", "0").entries) == 2


def test_a_run_folder_stands_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = listed(capsys, str(SAMPLES / "healthy")).entries
    assert entry.ranks == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "no recordings in ."),
        ([], "no recording in ./dptune-runs/"),
        ([""], "a path is empty"),
        ([".", "--last", "x"], "must be a number of recordings, not 'x'"),
    ],
)
def test_what_cannot_be_listed_is_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["history", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_the_commit_is_that_of_the_working_directory(tmp_path: Path) -> None:
    assert checked_out(tmp_path) == ""

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    script = tmp_path / "train.py"
    script.write_text("1\n", encoding="utf-8")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")[:12]
    assert checked_out(tmp_path) == commit
    script.write_text("2\n", encoding="utf-8")
    assert checked_out(tmp_path) == f"{commit}+"


def test_the_report_of_a_folder_with_one_run_is_that_of_the_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the run folder, which `dptune verify` needs."""
    (runs / "latest").unlink()
    run = sorted(each.parent for each in runs.glob("*/run.json"))[0]
    (runs.parent / "alone").mkdir()
    run = run.rename(runs.parent / "alone" / run.name)
    assert main(["report", str(run), "--no-cache", "--full"]) == 0
    of_run = capsys.readouterr().out
    assert str(run) in "".join(line.strip() for line in of_run.splitlines()[:3])
    assert main(["report", str(run.parent), "--no-cache", "--full"]) == 0
    assert capsys.readouterr().out == of_run


def test_the_report_of_a_folder_of_recordings_lists_them(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the record of the latest, which is read where it is there."""
    (runs / "latest").unlink()
    assert main(["history", str(runs), "--no-cache"]) == 0
    history = capsys.readouterr().out
    assert "same-order" in history
    assert main(["report", str(runs), "--no-cache"]) == 0
    assert capsys.readouterr().out == history
    for words in (["--full"], ["--section", "ranks"], ["--format", "json"]):
        assert main(["report", str(runs), "--no-cache", *words]) == 2
        assert "holds 2 runs" in capsys.readouterr().err
