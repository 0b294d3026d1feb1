"""What a trial of each side finds: the patched file in B's copy, what is beside the folder, or the folder itself."""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from dptune.advice import Change, Location
from dptune.commands import verify
from dptune.commands.verify import _record, _task
from dptune.present.sections.proof import page
from dptune.prove import engine, scratch, trial
from dptune.prove.result import Proof, Trial
from dptune.runfile.record import Ending, RunRecord

TRAIN = """\
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=8)
"""
WORKERS = Change(knob="loader.num_workers", now=0, then=2, at=Location(file="train.py", line=2))
ASKED = Namespace(
    yes=True, here=False, command=[], warmup=1, steps=2, seconds=0.0, stall_timeout=9.0, time_limit=3600, within=None
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, data beside the folder, and a recording in it."""
    folder = tmp_path / "project"
    (folder / "run").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "samples").write_text("samples")
    record = RunRecord(
        command=["python", "train.py"],
        python=sys.executable,
        launched_by="dptune",
        working_directory=str(folder),
        world_size=1,
        ending=Ending("complete", 0),
    )
    (folder / "run" / "run.json").write_text(json.dumps(dataclasses.asdict(record)))
    return folder


class Trials:
    """Takes the place of running: notes what each would find, and fails where a file is not found from there."""

    def __init__(self, reads: str = "train.py") -> None:
        self.reads = reads
        self.found: list[dict[str, Any]] = []

    def run(self, launch: object, side: Any, number: int, settings: Any, bounds: object, *more: Any) -> Trial:
        folder, cwd, _, written, _ = more
        folder.mkdir(parents=True)
        script = (cwd / "train.py").read_text()
        self.found.append({"side": side, "cwd": cwd, "script": script, "set": settings, "written": written})
        if not (cwd / self.reads).exists():
            why = {"step_ns": "it failed", "fast_step_ns": "it failed"}
            return made(number, side, status="failed", note=f"FileNotFoundError: {self.reads}", missing=why)
        ms = 10 if side == "A" else 8
        return made(number, side, step_ns=ms * 10**6 + number, fast_step_ns=ms * 10**6, missing={})


def made(number: int, side: Any, status: Any = "ran", missing: dict[str, str] | None = None, **more: Any) -> Trial:
    missing = {"samples_per_step": "no loader", **(missing or {})}
    return Trial(number=number, side=side, status=status, began="2026-01-01", seconds=0.1, missing=missing, **more)


def prove(project: Path, trials: Trials, monkeypatch: pytest.MonkeyPatch, *changes: Change, **asked: Any) -> Proof:
    monkeypatch.setattr(trial, "run", trials.run)
    settings = {change.knob: change.then for change in changes} or {"loader.num_workers": 2}
    words, folder = Namespace(**{**vars(ASKED), **asked}), project / "run"
    task = _task(words, folder, _record(folder), settings, "DP501" if changes else "", changes)
    return engine.prove(task, project / "run" / "verified" / "change")


def test_b_runs_the_patched_copy_and_nothing_is_set_from_outside(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials()
    proof = prove(project, trials, monkeypatch, WORKERS)
    by_side = {one["side"]: one for one in trials.found}
    assert "DataLoader(data, batch_size=8, num_workers=2)" in by_side["B"]["script"]
    assert (by_side["B"]["set"], by_side["B"]["written"]) == ({}, {"loader.num_workers": 2})
    assert by_side["A"]["script"] == (project / "train.py").read_text() == TRAIN
    assert (proof.b.patched, proof.changes, proof.outcome) == (["train.py"], {"loader.num_workers": 2}, "better")
    assert proof.a.code != proof.b.code
    told = " ".join("".join(text for text, _ in line) for line in page(proof, 200))
    assert "B runs train.py with the patch of `dptune report --patch --advice DP501`" in told


def test_where_the_patched_file_is_not_what_runs_it_is_set_from_outside(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the script imports it from where it is installed: the patch has no effect."""
    trials = Trials()
    run = trials.run

    def installed(*given: Any) -> Trial:
        done = run(*given)
        vain = dict.fromkeys(trials.found[-1]["written"], "it is 0 in the script")
        return done.model_copy(update={"without_effect": vain})

    monkeypatch.setattr(trial, "run", installed)
    settings = {"loader.num_workers": 2}
    monkeypatch.setattr(verify, "_change", lambda args, folder: (settings, "DP501", "", None, [WORKERS]))
    asked = {"words": [str(project / "run")], "advice": "DP501", "settings": [], "quiet": False, "format": "json"}
    assert verify.run(Namespace(**{**vars(ASKED), **asked})) == 0
    proof = json.loads(capsys.readouterr().out)
    assert (proof["outcome"], proof["b"]["patched"]) == ("better", [])
    assert [one["set"] for one in trials.found if one["side"] == "B"][-1] == settings


def test_what_has_no_patch_is_set_from_outside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = WORKERS.model_copy(update={"at": None})
    for number, changes in enumerate(([], [nowhere], [WORKERS, nowhere])):
        trials = Trials()
        (project / "train.py").write_text(f"{TRAIN}# {number}\n")
        proof = prove(project, trials, monkeypatch, *changes)
        (b, *_) = [one for one in trials.found if one["side"] == "B"]
        assert (b["set"], b["written"], proof.b.patched) == ({"loader.num_workers": 2}, {}, [])
        assert "num_workers" not in b["script"]


def test_in_the_folder_itself_no_file_is_patched(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is the folder of the recording, wherever `--here` is said."""
    monkeypatch.chdir(tmp_path)
    trials = Trials("../data/samples")
    proof = prove(project, trials, monkeypatch, WORKERS, here=True)
    assert {one["cwd"] for one in trials.found} == {project}
    assert {one["script"] for one in trials.found} == {TRAIN}
    assert (proof.b.patched, proof.outcome) == ([], "better")


def test_a_copy_that_lacks_data_is_tried_again_with_links_to_what_is_beside(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MOST_COPIED_ENTRIES", 9)  # not all that lies in the folder of temporary files
    trials = Trials("../data/samples")
    proof = prove(project, trials, monkeypatch, WORKERS)
    assert proof.outcome == "better"
    assert {one.status for one in proof.trials} == {"ran"}
    assert all(one.beside for one in proof.trials)
    assert len(trials.found) == len(proof.trials) + 1
    assert not any(one["cwd"] == project for one in trials.found)
    told = " ".join(" ".join("".join(text for text, _ in line) for line in page(proof, 200)).split())
    assert f"The script does not run in a copy of {project} alone: trials also had links to its siblings" in told


def test_a_copy_in_which_nothing_helps_says_how_it_may_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "MOST_COPIED_ENTRIES", 9)  # not all that lies in the folder of temporary files
    proof = prove(project, Trials("gone"), monkeypatch)
    assert proof.ended == "cannot run"
    assert "cannot run: failed: FileNotFoundError: gone" in proof.reason
    assert ("try --here (no copy)" in proof.reason) == (proof.reason.startswith("side A"))


def test_a_script_by_its_absolute_path_runs_in_the_copy(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = project / "run" / "run.json"
    record.write_text(record.read_text().replace('"train.py"', f'"{project}/train.py"'))
    seen = []
    trials = Trials()
    run = trials.run
    monkeypatch.setattr(trials, "run", lambda launch, *more: seen.append(launch.words[-1]) or run(launch, *more))
    prove(project, trials, monkeypatch, WORKERS)
    assert set(seen) == {"train.py"}
