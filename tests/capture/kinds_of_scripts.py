"""Every kind of training script in kinds/, and how each is started: bare, and recorded."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from .. import forks  # noqa: TID252 - tests are no installed package
from .conftest import Run, environment

FOLDER = Path(__file__).parent / "kinds"
# 2 of warm-up, 4 without the profiler, 1 + 3 light, 1 + 1 detailed: 12 steps
ABORTED = "terminate called without an active exception"  # by torch, where a thread of gloo still runs at exit
WINDOWS = ("--warmup", "2", "--untraced", "4", "--light", "3", "--detailed", "1", "--no-links")
FIRST_LIGHT_STEP, LAST_STEP = 8, 12
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "TORCH_EXTENSIONS_DIR": str(Path(tempfile.gettempdir()) / "dptune-tests-torch-extensions"),  # DeepSpeed compiles
}


@dataclass(frozen=True)
class Kind:
    """A script, the ranks that dptune or torchrun starts, those that there are, and what it needs installed."""

    name: str
    launched: int = 1
    ranks: int = 1
    arguments: tuple[str, ...] = ()
    needs: str | None = None
    module: bool = False
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def words(self) -> list[str]:
        target = ["-m", self.name] if self.module else [str(FOLDER / f"{self.name}.py")]
        return [*target, *self.arguments]

    @property
    def whole(self) -> Kind:
        """The same with all of torch, as without these tests."""
        return replace(self, env={"PYTHONPATH": "", **self.env})

    def check_installed(self) -> None:
        if self.needs is not None and importlib.util.find_spec(self.needs) is None:
            pytest.skip(f"{self.needs} is not installed")


KINDS = {
    kind.name: kind.whole if kind.needs or kind.name == "compiled" else kind
    for kind in (
        Kind("plain"),
        Kind("ddp", 2, 2),
        Kind("accumulate", 2, 2),
        Kind("accumulate_synced", 2, 2),
        Kind("chunks_of_a_batch", 2, 2),
        Kind("several_optimizers"),
        Kind("remade_optimizer"),
        Kind("grad_scaler"),
        Kind("fsdp1", 2, 2),
        Kind("fsdp2", 2, 2),
        Kind("spawn", 1, 2),
        Kind("forked", 1, 2),
        Kind("loader_workers"),
        Kind("compiled", 2, 2),
        Kind("hf_trainer", 2, 2, needs="transformers"),
        Kind("lightning_fit", 1, 2, ("--devices", "2"), needs="lightning"),
        Kind("accelerate_loop", 2, 2, needs="accelerate"),
        Kind("deepspeed_engine", 2, 2, needs="deepspeed"),
        Kind("package", module=True, env={"PYTHONPATH": str(FOLDER)}),
    )
}


def bare(kind: Kind, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script as its user runs it without dptune; again where gloo aborts it at its end, as it does now and then."""
    for _ in range(3):
        done = _bare(kind, folder, *arguments)
        if not done.returncode or ABORTED not in done.stderr:
            break
    return done


def _bare(kind: Kind, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    start = [str(forks.LAUNCHER), "--standalone", f"--nproc-per-node={kind.launched}"]
    words = [*(start if kind.launched > 1 else []), *kind.words, *arguments]
    return forks.run(*words, cwd=folder, env=environment(**QUIET, **kind.env))


def recording_command(kind: Kind, run_dir: Path, *options: str, arguments: tuple[str, ...] = ()) -> list[str]:
    """The same under `dptune profile`."""
    ranks = ["--nproc-per-node", str(kind.launched)] if kind.launched > 1 else []
    command = [sys.executable, "-m", "dptune", "profile", "--run-dir", str(run_dir), *WINDOWS, *ranks, *options]
    return [*command, *kind.words, *arguments]


def recorded(kind: Kind, folder: Path, *options: str, arguments: tuple[str, ...] = (), **env: str) -> Run:
    """Record it to its end; again where gloo aborted at exit, as without dptune."""
    for attempt in range(3):
        run_dir = folder / (f"run-{attempt}" if attempt else "run")
        done = subprocess.run(
            recording_command(kind, run_dir, *options, arguments=arguments),
            cwd=folder,
            env=environment(**QUIET, **kind.env, **env),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if not done.returncode or ABORTED not in done.stderr:
            break
    return Run(done.returncode, done.stdout, done.stderr, run_dir)
