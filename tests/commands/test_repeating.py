"""Two commits and two commands, run in turn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.records

TRAIN = """\
import sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else PAUSE)
"""
AMOUNT = ("--warmup", "2", "--steps", "12", "--seconds", "0")


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [sys.executable, "-m", "dptune", "compare", *words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def git(*words: str, cwd: Path) -> None:
    own = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *own, *words], cwd=cwd, check=True, capture_output=True)


def test_two_commits(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="trials need torch")
    folder = tmp_path / "repository" / "training"
    folder.mkdir(parents=True)
    git("init", "-q", cwd=folder)
    for pause in ("0.03", "0.01"):
        (folder / "train.py").write_text(TRAIN.replace("PAUSE", pause))
        git("add", "-A", cwd=folder)
        git("commit", "-qm", pause, cwd=folder)
    (folder / "train.py").write_text("raise SystemExit('not of a commit')\n")
    done = run("--script", "train.py", "HEAD~1", "HEAD", *AMOUNT, cwd=folder)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith("Verdict Better: with HEAD the time per step is 6")
    assert "A HEAD~1: 3" in said
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=folder, capture_output=True, text=True, check=True)
    assert len(worktrees.stdout.splitlines()) == 1


def test_two_commands(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="trials need torch")
    (tmp_path / "train.py").write_text(TRAIN)
    scripts = ("--script", "train.py 0.01", "--script", "train.py 0.03")
    done = run(*scripts, *AMOUNT, "--repeat", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith("Verdict Inconclusive: with train.py 0.03 the time per step is ")
    assert "1 trials a side are too few to decide" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--script", "train.py", "HEAD"), "--script takes two commits or folders and one command, or two commands"),
        (("--script", "train.py", "nowhere", "HEAD"), "nowhere is neither a folder nor a commit of this repository"),
        (("--script", "", "--script", "train.py"), "--script names nothing to run"),
    ],
)
def test_what_cannot_be_run_is_told(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"dptune: error: {said}")
