"""How several ranks share one card: each a host of its own to NCCL, and half of the card each, through CUDA's MPS.

Without MPS the processes take turns on the card, and a collective waits for the next turn: milliseconds, whatever its
size. MPS is a server that this starts and ends; it changes no setting of the card.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.gpu.place import Place, last_lines

HOSTS = Path(__file__).parent / "hosts"
_REFUSED = "mps-refused"
CONTROL = "nvidia-cuda-mps-control"
# Each rank a host of its own, so that NCCL takes them; what is left to it between hosts are sockets.
SOCKETS = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_NTHREADS": "4",
    "NCCL_NSOCKS_PERTHREAD": "2",
}
# A kernel that MPS runs, and that the profiler sees there.
_PROBE = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.randn(512, 512, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
    x @ x
    torch.cuda.synchronize()
assert any(event.device_time_total > 0 for event in found.key_averages()), "the profiler sees no kernel"
"""


def hosts() -> Mapping[str, str]:
    """Environment in which NCCL takes each rank for a host of its own."""
    return {**SOCKETS, "PYTHONPATH": os.pathsep.join(filter(None, (str(HOSTS), os.environ.get("PYTHONPATH"))))}


@contextlib.contextmanager
def shares(place: Place, ranks: int) -> Iterator[Mapping[str, str]]:
    """Environment in which that many ranks run on the card at once; empty, with a note why, where MPS does not run."""
    control, refused = shutil.which(CONTROL), place.out / _REFUSED
    if control is None or refused.exists():
        place.note("mps", refused.read_text() if refused.exists() else f"no {CONTROL} here")
        yield {}
        return
    folder = place.out / "mps"
    folder.mkdir(exist_ok=True)
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    share = {**env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // ranks)}
    try:
        why = _started(place, control, env, share)
        place.note("mps", why or f"{100 // ranks} % of the card for each rank")
        yield {} if why else share
    finally:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = {"env": {**os.environ, **env}, "capture_output": True, "timeout": 10, "check": False}
            subprocess.run([control], input="quit\n", text=True, **words)


def refuse(place: Place, why: str) -> None:
    """Let no later stage share the card through MPS."""
    (place.out / _REFUSED).write_text(why)


def _started(place: Place, control: str, env: Mapping[str, str], share: Mapping[str, str]) -> str:
    """Why MPS does not run; empty where it does."""
    said = place.out / "mps" / "said"  # no pipe: the server that the first command leaves behind would hold it open
    try:
        for command, further in (([control, "-d"], env), ([sys.executable, "-c", _PROBE], share)):
            with said.open("w") as sink:
                done = subprocess.run(
                    command,
                    env={**os.environ, **further},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    timeout=40,
                    check=False,
                )
            if done.returncode:
                why = last_lines(said.read_text(errors="replace"))
                return f"{Path(command[0]).name}: exit status {done.returncode}: {why}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
