"""dptune and the launchers around it, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptune.advise.disturbance import BUSY, SHARED, UNSTEADY
from dptune.capture import processes
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import environment

BIN = Path(sys.executable).parent
DPTUNE = (sys.executable, "-m", "dptune")
LOAD = {BUSY, UNSTEADY, SHARED}  # findings of data quality that other processes cause, whatever is recorded

# Data-parallel wherever a launcher says so, alone otherwise; slow enough to be met while it runs.
TRAIN = """\
import os, sys, time
import torch
import torch.distributed as dist

rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)))
world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", 1)))
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
if world > 1:
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(os.environ.get("STEPS", 40))):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(float(os.environ.get("PAUSE", 0.01)))
print("the script came to its end")
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""


@dataclass
class Done:
    status: int
    out: str
    err: str


def run(*words: str, cwd: Path, env: dict[str, str] | None = None, timeout: float = 900) -> Done:
    """Run a command to its end, in an environment without this test's own Python settings."""
    done = subprocess.run(
        words, cwd=cwd, env=surroundings(**(env or {})), capture_output=True, text=True, timeout=timeout, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_here(*words: str, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """`run` of `dptune` with these words, in this process, and with launcher/ in place of torchrun."""
    done = in_process.recording(*words, cwd=cwd, env=surroundings(**(env or {})))
    return Done(done.returncode, done.stdout, done.stderr)


def environment_after(lines: str, cwd: Path) -> dict[str, str]:
    """The environment in which a shell that has run these lines starts programs."""
    shown = run("sh", "-c", f"{lines}\nenv -0", cwd=cwd)
    return dict(entry.split("=", 1) for entry in shown.out.split("\0") if entry)


def surroundings(**extra: str) -> dict[str, str]:
    """The environment of a shell in which the tests' own Python comes first."""
    return environment(**{"PATH": f"{BIN}:{os.environ['PATH']}", **extra})


def record_in(folder: Path) -> RunRecord:
    """run.json of a folder."""
    return json_files.read(folder / "run.json", RunRecord)


def facts_in(folder: Path) -> list[Facts]:
    """The facts of all ranks in a folder."""
    return [json_files.read(path, Facts) for path in sorted(folder.glob("rank-*.facts.json"))]


def only_run(parent: Path) -> Path:
    """The one run folder under dptune-runs/."""
    (folder,) = [path for path in (parent / "dptune-runs").iterdir() if path.is_dir()]
    return folder


def latest(place: Path) -> Path:
    """The newest recording made from that working directory."""
    runs = place / "dptune-runs"
    return Path(os.path.normpath(runs / (runs / "latest").read_text(encoding="utf-8").strip()))


def left_behind(folder: Path) -> list[list[str]]:
    """Command lines of processes that still run and record into this folder."""
    entry = f'"folder":"{folder.resolve()}"'.encode()
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [
        processes.words(pid)
        for pid in pids
        if any(one.startswith(b"DPTUNE_CAPTURE=") and entry in one for one in processes.environ(pid))
        and processes.alive(pid)
    ]


def limits_of(report: dict[str, Any]) -> set[str]:
    """Codes of the findings that make a report partial or not judgeable."""
    return {finding["code"] for finding in report["trust"]["findings"] if finding["level"] != "info"}
