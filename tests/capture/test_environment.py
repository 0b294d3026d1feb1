"""The script's own Python, path and start-up files are respected."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from dptune.capture import interpreter
from dptune.errors import CaptureError

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import PLAIN, SHORT, WITHOUT_COMPILER, Run, environment

SHOW = "    print(sys.prefix)\n    print(sys.path)\n    print(__import__('os').environ.get('SEEN'))\n"


@pytest.mark.records
def test_torch_in_an_environment_without_dptune(profile: Callable[..., Run], tmp_path: Path) -> None:
    """A sitecustomize of the user's own runs in it."""
    import torch

    (tmp_path / "own").mkdir()
    shorter = (WITHOUT_COMPILER / "sitecustomize.py").read_text()
    (tmp_path / "own" / "sitecustomize.py").write_text(f"{shorter}\nimport os\nos.environ['SEEN'] = 'own'\n")
    venv.create(tmp_path / "theirs", with_pip=False)
    python = tmp_path / "theirs" / "bin" / "python"
    packages = Path(torch.__file__).parent.parent
    (site,) = (tmp_path / "theirs").glob("lib/python*/site-packages")
    (site / "torch.pth").write_text(f"{packages}\n")
    alone = subprocess.run([python, "-c", "import dptune"], capture_output=True, env=environment(), check=False)
    if alone.returncode == 0:
        pytest.skip("dptune is installed as plain files beside torch here, so no environment has the one alone")
    words = ("--continue", "--python", str(python), *SHORT)
    run = profile(PLAIN + SHOW, *words, env={"PYTHONPATH": str(tmp_path / "own")})
    prefix, path, seen = run.out.splitlines()
    assert prefix == str(tmp_path / "theirs")
    assert seen == "own"
    assert str(tmp_path / "own") in path
    assert "injected" not in path
    assert run.facts().ended == "complete"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python without torch."""
    venv.create(tmp_path / "bare", with_pip=False)
    return tmp_path / "bare"


def test_without_torch_the_user_is_told_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("VIRTUAL_ENV", str(bare))
    with pytest.raises(CaptureError, match="no torch to record with") as caught:
        interpreter.choose(None)
    assert "pip install 'dptune[profile]'" in caught.value.hint


def test_an_environment_without_torch_is_named_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python3"))
    monkeypatch.setenv("PATH", str(bare / "bin"))
    monkeypatch.setenv("VIRTUAL_ENV", str(bare))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    with pytest.raises(CaptureError) as caught:
        interpreter.choose(None)
    assert caught.value.message == f"no torch to record with ({bare / 'bin' / 'python'})"


def test_the_active_environment_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="finding torch needs torch")
    own = sys.prefix
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    monkeypatch.setenv("VIRTUAL_ENV", own)
    assert interpreter.choose(None).path == os.path.join(own, "bin", "python")  # noqa: PTH118


def test_a_python_asked_for_is_not_replaced_by_another(bare: Path) -> None:
    with pytest.raises(CaptureError, match="no torch to record with"):
        interpreter.choose(str(bare / "bin" / "python"))
    with pytest.raises(CaptureError, match="is not a working Python"):
        interpreter.choose("/no/such/python")


def test_a_missing_script_is_said_before_anything_is_written(tmp_path: Path) -> None:
    done = in_process.dptune("profile", "nowhere.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "dptune: error: no such script: nowhere.py" in done.stderr
    assert not (tmp_path / "dptune-runs").exists()


@pytest.mark.records
def test_a_run_folder_in_use_is_refused(profile: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    run = profile(PLAIN, *SHORT)
    assert run.status == 2
    assert "is not empty" in run.err
    assert run.files == {"mine.txt"}


@pytest.mark.parametrize(
    "first_lines",
    ["#!{python}", "#!/usr/bin/env -S {python} -u", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''"],
    ids=["path", "env", "longer-than-a-first-line-may-be"],
)
def test_the_python_of_a_launcher_is_the_one_its_first_line_names(bare: Path, tmp_path: Path, first_lines: str) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text(first_lines.format(python=bare / "bin" / "python") + "\nimport sys\n")
    assert interpreter.of_program(str(launcher)) is None  # it has no torch, and no other is asked
    pytest.importorskip("torch", reason="finding torch needs torch")
    launcher.write_text(first_lines.format(python=sys.executable) + "\nimport sys\n")
    found = interpreter.of_program(str(launcher))
    assert found is not None
    assert found.path == sys.executable
    assert found.torch


def test_a_launcher_that_is_no_python_script_runs_in_the_active_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="finding torch needs torch")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    found = interpreter.of_program("/bin/sh")
    assert found is not None
    assert Path(found.path).parent == Path(sys.prefix) / "bin"
