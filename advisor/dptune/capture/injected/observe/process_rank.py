"""Which rank this process is."""

from __future__ import annotations

import multiprocessing
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


# Set by a process that was started to train, for those that it starts itself.
_TRAINER = "DPTUNE_TRAINER"
_forked = False


def is_worker(launcher: int) -> bool:
    """Whether this process was started to train: dptune's own child, or a launcher's rank; not a helper of either.

    A program that such a process starts is not one, though it inherits its environment.
    """
    helper = any(arg.startswith("--multiprocessing-fork") for arg in sys.orig_argv)
    launched_rank = ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or "SLURM_PROCID" in os.environ
    agent = sys.argv[:1] and sys.argv[0].endswith("launch_workers.py")
    outermost = os.environ.get(_TRAINER) in (None, str(os.getpid()))
    return not helper and not agent and outermost and (launched_rank or os.getppid() == launcher)


def mark_trainer() -> None:
    """Let what this process starts know that it is not the one."""
    os.environ[_TRAINER] = str(os.getpid())


def may_be_recorded(launcher: int) -> bool:
    """Whether a process that trains is one of the run: started for it, spawned by a rank, or in a process group.

    Where nobody has been marked (a launcher of the user's own started everything), whoever trains first is.
    """
    return is_worker(launcher) or in_group() or _spawned() or _TRAINER not in os.environ


def may_be_ended(launcher: int) -> bool:
    """The same, but for a worker of a pool that trains by itself: whoever waits for its result would wait for ever."""
    return may_be_recorded(launcher) and (in_group() or not _spawned())


def note_fork() -> None:
    """In a child that os.fork() made of a process which had not trained yet: it may be the one that does."""
    global _forked
    _forked = True


def _spawned() -> bool:
    return _forked or multiprocessing.parent_process() is not None


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
