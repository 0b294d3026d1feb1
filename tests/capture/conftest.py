"""Real scripts, recorded by the real command in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord

from .. import forks, in_process  # noqa: TID252 - tests are no installed package

PLAIN = """
    import sys, torch
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(60):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@dataclass
class Run:
    status: int
    out: str
    err: str
    folder: Path

    @property
    def record(self) -> RunRecord:
        return json_files.read(self.folder / "run.json", RunRecord)

    def facts(self, rank: int = 0) -> Facts:
        return json_files.read(self.folder / f"rank-{rank:05d}.facts.json", Facts)

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"


def environment(**extra: str) -> dict[str, str]:
    """Without this test's own Python settings; torch is imported without its compiler unless PYTHONPATH is given."""
    kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return {**kept, "PYTHONPATH": str(WITHOUT_COMPILER), **extra}


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., Run]:
    """profile(script text, *dptune options, arguments=(), env={}): record it without its links, and read it back.

    The command runs in this process, and several ranks are started by launcher/ in place of torchrun.
    """
    return profiling_in(tmp_path)


@pytest.fixture
def profile_started(tmp_path: Path) -> Callable[..., Run]:
    """The same as a user starts it, with torchrun: for what is of dptune's own process, and of how recordings end."""
    return profiling_in(tmp_path, started)


@pytest.fixture
def profile_either(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Run]:
    """`profile_started` in thorough tests, and where Python is started for each process (forks.py); else `profile`."""
    return profiling_in(tmp_path, started if request.node.get_closest_marker("thorough") else STARTED_IF_EACH_IS)


def profiling_in(
    place: Path, dptune: Callable[..., subprocess.CompletedProcess[str]] | None = None
) -> Callable[..., Run]:
    """`profile` in another folder: for a recording that several tests look at."""
    pytest.importorskip("torch", reason="recording needs torch")
    command = dptune or in_process.recording

    def run(script: str, *options: str, arguments: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Run:
        (place / "train.py").write_text(textwrap.dedent(script))
        folder = place / "run"
        target = [] if "-m" in options else ["train.py"]
        words = ["profile", "--run-dir", str(folder), "--no-links", "--no-cpu-peak", *options, *target, *arguments]
        done = command(*words, cwd=place, env=environment(**(env or {})))
        return Run(done.returncode, done.stdout, done.stderr, folder)

    return run


def started(*words: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "dptune", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900, check=False)


STARTED_IF_EACH_IS = started if forks.EACH_STARTED in os.environ else None
SHORT = ("--warmup", "2", "--untraced", "4", "--light", "2", "--detailed", "1", "--no-links", "--no-cpu-peak")
