"""Two commits and two commands, run in turn."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any

import pytest

from dptune.commands.shared.repeating import _most
from dptune.prove import trial
from dptune.prove.result import Trial

from .. import in_process  # noqa: TID252 - tests are no installed package

pytestmark = pytest.mark.records

TRAIN = """\
import sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
class Descent(torch.optim.Optimizer):  # one of torch's loads torch.compile: a third of what such a short run takes
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
    def add_param_group(self, group):
        self.param_groups.append({**group, "params": list(group["params"])})
    def step(self):
        for param in self.param_groups[0]["params"]:
            param.data -= 0.1 * param.grad
            param.grad = None
optimizer = Descent(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else PAUSE)
"""
WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"
AMOUNT = ("--warmup", "2", "--steps", "12", "--seconds", "0")


def surroundings(**more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**env, "PYTHONPATH": str(WITHOUT_COMPILER), **more}


@pytest.fixture(autouse=True)
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the user has activated none."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)


def here(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return in_process.dptune("compare", *words, cwd=cwd, PYTHONPATH=str(WITHOUT_COMPILER), **more)


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dptune", "compare", *words],
        cwd=cwd,
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def git(*words: str, cwd: Path) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(["git", *own, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


def worktrees(cwd: Path) -> int:
    told = subprocess.run(["git", "worktree", "list"], cwd=cwd, capture_output=True, text=True, check=True)
    return len(told.stdout.splitlines())


def repository(folder: Path, *commits: dict[str, str]) -> Path:
    """A repository of these commits, each the files it adds or changes."""
    folder.mkdir()
    git("init", "-q", cwd=folder)
    for number, files in enumerate(commits):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        git("add", "-A", cwd=folder)
        git("commit", "-qm", str(number), cwd=folder)
    return folder


def two_commits(folder: Path) -> None:
    """A folder of a repository whose script pauses for less in its second commit, and is changed since."""
    folder.mkdir(parents=True)
    git("init", "-q", cwd=folder)
    for pause in ("0.03", "0.01"):
        (folder / "train.py").write_text(TRAIN.replace("PAUSE", pause))
        git("add", "-A", cwd=folder)
        git("commit", "-qm", pause, cwd=folder)
    (folder / "train.py").write_text("raise SystemExit('not of a commit')\n")


def compared(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """The second commit was found better, and everything is as it was."""
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith("Verdict Better: with HEAD the time per step is ")
    (kept,) = (folder / "dptune-runs" / "compared").glob("*/proof.json")
    proof = json.loads(kept.read_text())
    assert proof["a_step_ns"] > 30e6  # the pause, and what is computed: longer beside other tests
    assert proof["a_step_ns"] > proof["b_step_ns"] > 10e6
    commit = git("rev-parse", "HEAD~1", cwd=folder).strip()[:10]
    assert f"A HEAD~1 ({commit}): " in said
    assert worktrees(folder) == 1
    assert (folder / "dptune-runs" / "compared").is_dir()
    assert git("status", "--porcelain", "--untracked-files=all", cwd=folder).splitlines() == [" M train.py"]
    assert "warning" not in done.stderr


def test_two_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial is made up of the pause that stands in the script where it would run."""
    pytest.importorskip("torch", reason="trials need torch")
    folder = tmp_path / "repository" / "training"
    two_commits(folder)

    def runs(launch: object, side: Any, number: int, settings: object, bounds: object, *more: Any) -> Trial:
        place, cwd, *_ = more
        place.mkdir(parents=True)
        (pause_s,) = re.findall(r"else ([\d.]+)\)", (cwd / "train.py").read_text())
        took = dict.fromkeys(("step_ns", "fast_step_ns"), float(pause_s) * 1e9 + number)
        missing = {"samples_per_step": "no loader"}
        return Trial(number=number, side=side, status="ran", began="2026-01-01", seconds=0.1, missing=missing, **took)

    monkeypatch.setattr(trial, "run", runs)
    compared(in_process.dptune("compare", "--script", "train.py", "HEAD~1", "HEAD", *AMOUNT, cwd=folder), folder)


@pytest.mark.thorough
def test_two_commits_are_run(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="trials need torch")
    folder = tmp_path / "repository" / "training"
    two_commits(folder)
    compared(run("--script", "train.py", "HEAD~1", "HEAD", *AMOUNT, cwd=folder), folder)


@pytest.mark.thorough
def test_two_commands(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="trials need torch")
    (tmp_path / "train.py").write_text(TRAIN)
    scripts = ("--script", "train.py 0.01", "--script", "train.py 0.03")
    done = run(*scripts, *AMOUNT, "--repeat", "6", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith("Verdict Worse: with train.py 0.03 the time per step is ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--script", "train.py", "HEAD"), "--script needs two commits or folders and one command, or two commands"),
        (("--script", "train.py", "nowhere", "HEAD"), "nowhere is neither a folder nor a commit in this repository"),
        (("--script", "", "--script", "train.py"), "--script is empty"),
        (("--script", "train.py 'x", "a", "b"), "a is neither a folder nor a commit in this repository"),
        (
            ("--script", "train.py 'x", "--script", "train.py"),
            "--script train.py 'x cannot be split into words: no closing quotation",
        ),
        (("--script", "train.py", ".", "."), ".: no such script: train.py"),
        (
            ("--script", "train.py", ".", ".", "--repeat", "36"),
            "--repeat 36: verdicts are possible after 6, 9, 13, 18, 25 and 35 trials per side",
        ),
        (
            ("--script", "train.py", ".", ".", "--repeat", "5"),
            "--repeat 5: verdicts are possible after 6, 9, 13, 18, 25",
        ),
        (("--script", "train.py", "a" * 5000, "."), "aaaa"),
        (("a", "b", "--repeat", "9"), "--repeat is only valid with --script"),
        (("a", "b", "--set", "env.A=1"), "--set is only valid with --script"),
        (("a", "b", "--nproc-per-node", "2"), "--nproc-per-node is only valid with --script"),
    ],
)
def test_what_cannot_be_run_is_told(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = in_process.dptune("compare", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"dptune: error: {said}")


@pytest.mark.parametrize(
    ("asked", "most", "said"), [(6, 6, ""), (8, 6, "at most 6 will run"), (17, 13, "at most 13 will run"), (18, 18, "")]
)
def test_trials_after_the_last_look_are_not_made(
    asked: int, most: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _most(argparse.Namespace(repeat=asked, quiet=False)) == most
    assert bool(said) == bool(told := capsys.readouterr().err)
    assert said in told


def test_a_commit_without_the_folder_is_named_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = repository(tmp_path / "repository", {"a.py": ""}, {"sub/train.py": ""})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = here("--script", "train.py", "HEAD~1", "HEAD", cwd=place / "sub")
    assert done.returncode == 2
    assert done.stderr.startswith("dptune: error: HEAD~1 has no folder sub/\n"), done.stderr
    assert worktrees(place) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_a_commit_without_the_script_is_named(tmp_path: Path) -> None:
    place = repository(tmp_path / "repository", {"a.py": ""}, {"train.py": ""})
    done = here("--script", "train.py", "HEAD~1", "HEAD", cwd=place)
    assert done.stderr.startswith("dptune: error: HEAD~1: no such script: train.py\n"), done.stderr


def test_what_was_checked_out_by_a_process_that_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not what is another's: of a process that runs, of another machine, of no process, of another repository."""
    pytest.importorskip("torch", reason="trials need torch")
    place = repository(tmp_path / "repository", {"train.py": "import time; time.sleep(300)"}, {"b.py": ""})
    temporary = tmp_path / "temporary"
    host, gone = platform.node(), subprocess.Popen(["true"])
    gone.wait()
    kept = [f"dptune-commit-{os.getpid()}@{host}-abcdefgh", f"dptune-commit-{gone.pid}@{host}2-abcdefgh"]
    kept += ["dptune-commit-abcdefgh", f"dptune-commit-{gone.pid}@{host}"]
    for name in kept:
        (temporary / name / "tree").mkdir(parents=True)
    (temporary / f"dptune-commit-{gone.pid}@{host}-abcdefgh" / "tree").mkdir(parents=True)
    git("worktree", "add", "-q", str(tmp_path / "users"), cwd=place)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    words = ("compare", "--script", "train.py", "HEAD~1", "HEAD")
    read, write = os.pipe()
    with open(os.devnull, "r+b") as nothing:
        streams = (nothing.fileno(), nothing.fileno(), write)
        process = in_process.forked(*words, streams=streams, cwd=place, env=surroundings(TMPDIR=str(temporary)))
    os.close(write)
    with open(read, "rb") as errors:
        for line in errors:
            if line.startswith(b"dptune: trial 1"):
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    left = {path.name for path in temporary.iterdir()} - set(kept)
    assert {name.rpartition("-")[0] for name in left} == {f"dptune-commit-{process.pid}@{host}"}
    assert len(left) == 2
    assert worktrees(place) == 4
    (tmp_path / "users").rename(tmp_path / "moved")  # which is no reason to forget it
    done = here("--script", "gone.py", "HEAD~1", "HEAD", cwd=place)
    assert "no such script" in done.stderr
    assert {path.name for path in temporary.iterdir()} == set(kept)
    assert worktrees(place) == 2


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment of the user's, with torch as it is here."""
    pytest.importorskip("torch", reason="trials need torch")
    venv.create(tmp_path / "environment", symlinks=True)
    (packages,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    (packages / "torch.pth").write_text(sysconfig.get_path("purelib"))
    return packages


FAILS = "import own\nraise SystemExit('ends at once')\n"


def test_a_package_that_both_sides_take_from_one_place_is_told(tmp_path: Path, environment: Path) -> None:
    first = {"train.py": FAILS, "src/own/__init__.py": "", "src/other/__init__.py": "", "tests/__init__.py": ""}
    place = repository(tmp_path / "repository", first, {"src/own/__init__.py": "VALUE = 2\n"})
    (environment / "__editable__.own.pth").write_text(f"{place / 'src'}\n")
    (environment / "tests").mkdir()
    (environment / "tests" / "__init__.py").write_text("")
    python = ("--python", str(tmp_path / "environment" / "bin" / "python"))
    done = here("--script", "train.py", "HEAD~1", "HEAD", *python, cwd=place)
    assert done.returncode == 1, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert warning == (
        f"dptune: warning: HEAD~1 and HEAD would import other from {place}/src/other, own from {place}/src/own, not "
        f"from the compared code: it is installed (pip install) or on PYTHONPATH"
    )

    git("worktree", "add", "-q", "../changed", "HEAD~1", cwd=place)
    done = here("--script", "train.py", ".", "../changed", *python, cwd=place)
    assert f"dptune: warning: ../changed would import other from {place}/src/other, own from" in done.stderr


def test_a_package_that_is_installed_as_a_copy_is_told(tmp_path: Path, environment: Path) -> None:
    first = {"train.py": FAILS, "src/own/__init__.py": "", "json5/__init__.py": ""}
    place = repository(tmp_path / "repository", first, {"src/own/__init__.py": "VALUE = 2\n"})
    for name in ("own", "json5"):  # one of them is another's, of the same name
        (environment / name).mkdir()
        (environment / name / "__init__.py").write_text("")
    python = ("--python", str(tmp_path / "environment" / "bin" / "python"))
    done = here("--script", "train.py", "HEAD~1", "HEAD", *python, cwd=place)
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert warning.startswith(f"dptune: warning: HEAD~1 and HEAD would import own from {environment}/own, not from")


def test_a_package_beside_the_script_is_its_own(tmp_path: Path, environment: Path) -> None:
    """Python looks beside the script before it looks where something is installed."""
    first = {"train.py": FAILS, "own/__init__.py": "", "scripts/train.py": FAILS}
    place = repository(tmp_path / "repository", first, {"own/__init__.py": "VALUE = 2\n"})
    (environment / "__editable__.own.pth").write_text(f"{place}\n")
    python = ("--python", str(tmp_path / "environment" / "bin" / "python"))
    done = here("--script", "train.py", "HEAD~1", "HEAD", *python, cwd=place)
    assert done.returncode == 1
    assert "warning" not in done.stderr
    done = here("--script", "scripts/train.py", "HEAD~1", "HEAD", *python, cwd=place)
    assert f"would import own from {place}/own" in done.stderr
