"""Which rank this process is."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist


def in_group() -> bool:
    """Whether torch.distributed is up in this process."""
    return dist.is_available() and dist.is_initialized()


def together() -> bool:
    """Whether this process trains in a group with others."""
    return in_group() and dist.get_world_size() > 1


def rank() -> int:
    """This process's rank: from the process group, else from the launcher's environment, else 0."""
    return dist.get_rank() if in_group() else _number("RANK", "SLURM_PROCID") or 0


def world_size() -> int:
    """How many ranks there are: from the process group, else from the launcher's environment, else 1."""
    return dist.get_world_size() if in_group() else _number("WORLD_SIZE", "SLURM_NTASKS") or 1


def local_rank() -> int | None:
    """This process's number on its host, where its launcher says so."""
    return _number("LOCAL_RANK", "SLURM_LOCALID")


def backend() -> str | None:
    """The default process group's backend."""
    return str(dist.get_backend()) if in_group() else None


def is_worker(launcher: int) -> bool:
    """Whether this process was started to train: dptune's own child, or a launcher's rank; not a helper of either."""
    helper = any(arg.startswith("--multiprocessing-fork") for arg in sys.orig_argv)
    launched_rank = ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or "SLURM_PROCID" in os.environ
    agent = sys.argv[:1] and sys.argv[0].endswith("launch_workers.py")
    return not helper and not agent and (launched_rank or os.getppid() == launcher)


def device_kind() -> str:
    """The kind of device this process computes on."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "rocm" if torch.version.hip else "cuda"
    return "cpu"


def _number(*variables: str) -> int | None:
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return None
