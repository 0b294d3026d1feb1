from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dptune.capture import processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found through /proc")

# A parent that ends on SIGTERM, and a child of it that does not.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_what_ignores_sigterm_is_killed_and_nothing_stays_behind() -> None:
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert processes.descendants(parent.pid) == [child]
    processes.end(parent, grace_s=0.5)
    parent.stdout.close()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and processes.alive(child):
        time.sleep(0.05)
    assert parent.returncode is not None
    assert not processes.alive(child)
