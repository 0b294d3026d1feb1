"""dptune on both nodes of a shaped network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .network import Node

SHORTER_IMPORT = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "without_compiler")
}  # torch is imported without its compiler


def on_both(
    nodes: Sequence[Node],
    cwds: Sequence[Path],
    words: Sequence[str],
    then: Sequence[str] = (),
    port: int = 29711,
    env: Mapping[str, str] | None = None,
) -> None:
    """dptune with `words`, the options of the node, and `then`, on both at once, to the end of both."""
    started = []
    for i, (node, cwd) in enumerate(zip(nodes, cwds, strict=True)):
        where = ("--nnodes", "2", "--node-rank", str(i), "--master-addr", nodes[0].address, "--master-port", str(port))
        command = node.command(sys.executable, "-m", "dptune", *words, *where, *then)
        variables = {**os.environ, "GLOO_SOCKET_IFNAME": node.device, "OMP_NUM_THREADS": "1", **(env or {})}
        started.append(
            subprocess.Popen(command, cwd=cwd, env=variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        )
    try:
        said = [process.communicate(timeout=900)[1].decode() for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], said


def recorded(nodes: Sequence[Node], folder: Path, script: str, port: int, untraced: int = 4) -> Path:
    """The recording of a script that both nodes run in one folder."""
    (folder / "train.py").write_text(script)
    windows = ("--warmup", "2", "--untraced", str(untraced), "--light", "8", "--detailed", "2")
    on_both(nodes, [folder] * 2, ("profile", *windows, "--run-dir", "run"), ("train.py",), port, SHORTER_IMPORT)
    return folder / "run"
