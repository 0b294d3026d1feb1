"""How this machine's GPUs are connected, as the driver's own tool says it."""

from __future__ import annotations

import shutil
import subprocess

_LIMIT_S = 10.0


def read() -> str | None:
    """What `nvidia-smi topo -m` prints; None where there is no such program, or it does not answer in time."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run([program, "topo", "-m"], capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
