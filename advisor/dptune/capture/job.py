"""The job that `dptune profile` finds itself in, where a launcher starts it once per rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dptune.capture import processes

_NO_RUN_ID = (None, "", "none")  # torchrun's own default says nothing
_SPECIAL_STEPS = 0xFFFFFFF0  # from here on Slurm counts the batch script and its like, which are not tasks


@dataclass(frozen=True)
class Job:
    """This rank's place in the job. `name` is the same for all ranks of the job, and another job has another."""

    rank: int
    world_size: int
    local_ranks: int | None
    name: str


def surrounding(environment: Mapping[str, str] | None = None) -> Job | None:
    """The job this process is a rank of, by RANK and WORLD_SIZE, or as a task of Slurm; None outside of one."""
    variables = os.environ if environment is None else environment
    local = _number(variables, "LOCAL_WORLD_SIZE") or _number(variables, "LOCAL_SIZE")
    rank, world = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    if rank is not None and world is not None:
        return Job(rank, world, local, _name(variables, local == world))
    rank, world = _number(variables, "SLURM_PROCID"), _number(variables, "SLURM_NTASKS")
    step = _number(variables, "SLURM_STEP_ID")
    if rank is None or world is None or world < 2 or step is None or step >= _SPECIAL_STEPS:
        return None
    return Job(rank, world, _number(variables, "SLURM_NTASKS_PER_NODE"), _name(variables, False))


def slurm_name(variables: Mapping[str, str]) -> str | None:
    """A name for the Slurm job step this process belongs to."""
    job, step = variables.get("SLURM_JOB_ID"), variables.get("SLURM_STEP_ID")
    return _plain(f"slurm-{job}.{step}" if step else f"slurm-{job}") if job else None


def named(text: str) -> str:
    """Text as part of a folder's name."""
    return _plain(text)


def _name(variables: Mapping[str, str], one_node: bool) -> str:
    run_id = variables.get("TORCHELASTIC_RUN_ID")
    launcher = _launcher(variables) if one_node else None
    name = launcher or slurm_name(variables)
    if name is None:
        parts = [None if run_id in _NO_RUN_ID else run_id, variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")]
        name = _plain("-".join(part for part in parts if part)) or "job"
    restarts = variables.get("TORCHELASTIC_RESTART_COUNT") or variables.get("SLURM_RESTART_COUNT") or "0"
    return name if restarts == "0" else f"{name}-restart{_plain(restarts)}"


def _launcher(variables: Mapping[str, str]) -> str | None:
    """The nearest process above that is not of this rank, as a wrapper script would be: its id and when it started."""
    mine, pid = f"RANK={variables['RANK']}".encode(), os.getppid()
    while pid > 1 and mine in processes.environ(pid):
        pid = processes.parent(pid) or 0
    started = processes.started(pid)
    return f"job-{pid}-{started}" if pid > 1 and started else None


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else None


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80]


def hostname() -> str:
    """This machine's name, as part of a file's name."""
    return _plain(os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")) or "host"
