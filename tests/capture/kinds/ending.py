"""How a script ends before its last step: what the environment variables ENDING, ENDING_AT and ENDING_RANK ask for."""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

HOW = os.environ.get("ENDING", "")
AT = int(os.environ.get("ENDING_AT", "1"))
RANK = os.environ.get("ENDING_RANK")


def at(step):
    """Called at the start of each step, counted from 1."""
    if not HOW or step < AT or (RANK is not None and int(RANK) != rank()):
        return
    if HOW == "say":
        print(f"at step {step}", flush=True)
        time.sleep(0.2)
    elif step == AT:
        ENDINGS[HOW]()


def rank():
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def fail():
    raise RuntimeError(f"rank {rank()} was asked to fail")


def block():
    print(f"rank {rank()} is blocked", flush=True)
    while True:
        time.sleep(60)


def run_out_of_memory():
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**28, resource.getrlimit(resource.RLIMIT_AS)[1]))
    torch.ones(2**30)


ENDINGS = {
    "raise": fail,
    "exit": lambda: sys.exit(3),
    "os_exit": lambda: os._exit(4),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "blocked": block,
    "memory": run_out_of_memory,
}
