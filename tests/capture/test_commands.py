"""What the first word names: a script for Python, or a command that starts it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dptune.capture.launch import Script, own_command
from dptune.errors import CaptureError


def made(path: Path, text: str, executable: bool = True) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if executable else 0o644)
    return str(path)


@pytest.mark.parametrize(
    ("text", "executable", "is_command"),
    [
        ("#!/bin/sh\nexec python train.py\n", True, True),
        ("#!/usr/bin/env -S uv run\n", True, True),
        ("#!/bin/sh\nexec python train.py\n", False, False),
        ("#!/usr/bin/env python3\nimport torch\n", True, False),
        ("#!/bin/sh\n'''exec' \"/env/bin/python3.11\" \"$0\" \"$@\"\n' '''\n", True, False),
        ("import torch\n", True, False),
        ("", True, False),
    ],
)
def test_an_executable_file_is_a_command_unless_python_runs_it(
    tmp_path: Path, text: str, executable: bool, is_command: bool
) -> None:
    path = made(tmp_path / "train", text, executable)
    assert Script(path).program == (path if is_command else None)


def test_a_binary_is_a_command(tmp_path: Path) -> None:
    assert Script(sys.executable, ("-I", "x.py")).program == sys.executable


def test_a_command_that_lies_here_is_not_looked_for_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "run.sh", "#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    started = own_command(Script("run.sh", ("4",)), None)
    assert (started.words, started.shown) == (("./run.sh", "4"), ("run.sh", "4"))


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("train.ipynb", "a notebook", "with dptune.profile() as prof:"),
        ("rank0.json.gz", "a trace or a report", "dptune report"),
        ("report.json", "a trace or a report", "dptune report"),
    ],
)
def test_a_file_that_is_no_script_is_refused_before_anything_starts(
    tmp_path: Path, name: str, what: str, hint: str
) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(CaptureError, match=f"{name} is {what}, not a script") as refused:
        Script(str(tmp_path / name)).check()
    assert hint in refused.value.hint


def test_a_folder_runs_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "model" / "__main__.py", "")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    for target in ("../model", str(tmp_path / "model"), "."):
        script = Script(target)
        script.check()
        assert (script.program, script.name) == (None, "model")
    with pytest.raises(CaptureError, match=r"empty is a folder without __main__\.py"):
        Script(str(tmp_path / "empty")).check()
