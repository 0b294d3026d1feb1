"""How recorded runs are started again, and which cannot be."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dptune.errors import RunError
from dptune.prove import rerun
from dptune.runfile.record import RunRecord

RECORD = RunRecord(command=["python", "train.py"], python=sys.executable, world_size=2)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "start.sh").write_text("#!/bin/sh\nexec python train.py\n")
    (tmp_path / "start.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(by: str, **more: object) -> RunRecord:
    return RunRecord(**{**vars(RECORD), "launched_by": by, **more})


@pytest.mark.parametrize(("by", "started"), [("dptune", "dptune"), ("torchrun", "torchrun")])
def test_what_dptune_started_is_started_so_again(by: str, started: str) -> None:
    assert rerun.launch_of(record(by, nproc_per_node=2)).by == started


@pytest.mark.parametrize(
    ("by", "why"),
    [
        ("launcher", "started dptune once per rank"),
        ("environment", "the launcher of the run's 2 ranks is unknown"),
        ("code", "the launcher of the run's 2 ranks is unknown"),
    ],
)
def test_ranks_that_something_else_started_take_its_command(by: str, why: str) -> None:
    with pytest.raises(RunError, match=why) as refused:
        rerun.launch_of(record(by))
    assert refused.value.hint == "repeat the command with the launcher at its end: -- torchrun ... train.py"
    launch = rerun.launch_of(record(by), ["./start.sh", "--fast"])
    assert (launch.by, launch.words) == ("command", ("./start.sh", "--fast"))


@pytest.mark.parametrize("by", ["environment", "code"])
def test_one_process_is_started_by_its_script(by: str) -> None:
    launch = rerun.launch_of(record(by, world_size=1))
    assert (launch.by, launch.shown) == ("dptune", ("python", "train.py"))


def test_a_script_may_be_given_instead() -> None:
    assert rerun.launch_of(record("code"), ["train.py", "--fast"]).shown == ("python", "train.py", "--fast")


@pytest.mark.parametrize(
    ("by", "more", "command"),
    [
        ("dptune", {}, "python train.py"),
        ("torchrun", {"nproc_per_node": 2}, "torchrun --nproc-per-node 2 train.py"),
        ("torchrun", {"nproc_per_node": "gpu", "nnodes": 2}, "torchrun --nnodes 2 --nproc-per-node gpu train.py"),
        (
            "command",
            {"command": ["torchrun", "--nproc-per-node=2", "train.py"]},
            "torchrun --nproc-per-node=2 train.py",
        ),
        ("launcher", {"world_size": 2}, "python train.py"),
    ],
)
def test_the_command_to_copy_starts_all_ranks_that_dptune_started(by: str, more: dict[str, Any], command: str) -> None:
    assert " ".join(record(by, **more).typed) == command


def test_a_launch_shows_what_its_recording_shows() -> None:
    recorded = record("torchrun", nproc_per_node=2)
    assert rerun.launch_of(recorded).typed == recorded.typed


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"settings": {"env.TOKEN": "<redacted>"}}, "the recorded value of env.TOKEN lacks its secret"),
        ({"nnodes": 2}, "the run had 2 nodes, but trials run on this one only"),
        ({"command": ["python"]}, "the recording has no command"),
    ],
)
def test_what_cannot_be_started_again(changed: dict[str, Any], why: str) -> None:
    asked = rerun.settings_of if "settings" in changed else rerun.launch_of
    with pytest.raises(RunError, match=why):
        asked(record("dptune", **changed))
