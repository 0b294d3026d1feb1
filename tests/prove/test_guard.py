"""What is left of trials when dptune is killed: nothing, and nothing of others is ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.prove import folder as folders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")

ENDS_WITHIN_S = 300.0
# A process that starts another one, as torchrun starts ranks, and prints both numbers.
RANKS = """\
import subprocess, sys, time
sleeping = [sys.executable, "-c", "import time; time.sleep(900)"]
rank = subprocess.Popen(sleeping, stdout=subprocess.DEVNULL, start_new_session=True)
print(rank.pid, flush=True)
"""
DPTUNE = f"""\
import os, subprocess, sys, time
from pathlib import Path
from dptune.prove import folder as folders
place = Path(sys.argv[1])
with folders.alone(place):
    launcher = subprocess.Popen([sys.executable, "-c", {RANKS!r}], env={{**os.environ, **folders.mark(place)}})
    sys.stdin.read()
print("left", flush=True)
"""


def started(place: Path) -> tuple[subprocess.Popen[str], int]:
    """A dptune at work in the folder, and the process of the rank that its launcher started."""
    process = subprocess.Popen(
        [sys.executable, "-c", DPTUNE, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def ended(descriptor: int, within_s: float) -> bool:
    """Whether the process of a descriptor ends in time."""
    return bool(select.select([descriptor], [], [], within_s)[0])


def test_ranks_end_when_dptune_is_killed_and_those_of_others_do_not(tmp_path: Path) -> None:
    place = tmp_path / "tuned" / "trials"
    process, rank = started(place)
    descriptor = os.pidfd_open(rank)
    of_another = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(900)"], env={**os.environ, **folders.mark(place)}
    )  # of the same folder, started by this process
    try:
        assert not ended(descriptor, 0)
        process.kill()
        assert ended(descriptor, ENDS_WITHIN_S)
        assert of_another.poll() is None
    finally:
        os.close(descriptor)
        of_another.kill()
        of_another.wait()
        process.communicate()


def test_what_runs_on_when_dptune_ends_by_itself_is_not_the_guards_business(tmp_path: Path) -> None:
    process, rank = started(tmp_path / "tuned" / "trials")
    descriptor = os.pidfd_open(rank)
    try:
        assert process.communicate("", timeout=ENDS_WITHIN_S)[0] == "left\n"
        assert process.returncode == 0
        assert not ended(descriptor, 2)
    finally:
        os.kill(rank, signal.SIGKILL)
        os.close(descriptor)
