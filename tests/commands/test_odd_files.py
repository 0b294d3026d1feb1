"""What is no regular file, where one is read, ends in a sentence: a pipe would be waited for, a device never ends."""

import contextlib
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from dptune.cli import main

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "healthy"
TIMEOUT_S = 120  # a hang: each takes a fraction of a second

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and sockets of POSIX")


@pytest.fixture
def project(tmp_path):
    """A folder with a run."""
    shutil.copytree(SAMPLE, tmp_path / "run")
    return tmp_path


@contextlib.contextmanager
def odd(kind, path):
    path.parent.mkdir(exist_ok=True, parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            with contextlib.chdir(path.parent):  # its path may be too long
                bound.bind(path.name)
            yield
        return
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    yield


@pytest.fixture
def refused(project, monkeypatch, capsys):
    """What a command says, in one sentence and a hint; a hang ends in an error."""

    def hangs(*_):
        raise AssertionError("it waits for ever")

    def run(*words):
        signal.alarm(TIMEOUT_S)
        assert main(list(words)) == 2
        signal.alarm(0)
        said = capsys.readouterr()
        assert said.out == ""
        error, *more = said.err.splitlines()
        assert error.startswith("dptune: error: ")
        assert all(line.startswith("hint: ") for line in more)
        assert "internal error" not in error
        return error

    before = signal.signal(signal.SIGALRM, hangs)
    monkeypatch.chdir(project)
    yield run
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


KINDS = ("pipe", "socket", "device", "folder")


@pytest.mark.parametrize("kind", KINDS)
def test_latest(project, refused, kind):
    with odd(kind, project / "dptune-runs" / "latest"):
        assert "./dptune-runs/latest" in refused("report", "--no-tui")
        if kind != "folder":
            assert "latest is not a regular file" in refused("report", "dptune-runs", "--no-tui")
            assert "latest is not a regular file" in refused("report", "dptune-runs/latest", "--no-tui")
        refused("verify", "--set", "ddp.bucket_cap_mb=1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_baseline_and_a_run(project, refused, kind):
    with odd(kind, project / "base"):
        for words in (["check", "run", "--baseline", "base"], ["check", "base"], ["compare", "base", "run"]):
            error = refused(*words)
            assert ("base is not a regular file" in error) if kind != "folder" else ("base" in error)


@pytest.mark.parametrize("kind", KINDS)
def test_accepted_advice(project, refused, kind):
    with odd(kind, project / "accepted.json"):
        for more in ([], ["--update-accepted"]):
            error = refused("check", "run", "--accept", "accepted.json", *more)
            assert "accepted.json is not a regular file" in error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["dptune.toml", "pyproject.toml"])
def test_settings(project, refused, kind, name):
    with odd(kind, project / name):
        assert f"{name} is not a regular file" in refused("report", "run", "--no-tui")
