"""Ending the commands of a server, with real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..prove.test_engine import left_in  # noqa: TID252 - tests are no installed package

# a command that no interrupt ends; the guard is Python itself
STUBBORN = f"""#!/bin/sh
if [ "$1" = -P ]; then exec {sys.executable} "$@"; fi
trap '' INT
touch "$PWD/started"
while :; do sleep 0.2; done
"""
SERVER = """
import os, pathlib, sys, threading, time
from dptune.agents.processes import Processes
sys.executable = sys.argv[1]
served = Processes()
served.start(["tune"], pathlib.Path("log"), "")
while not pathlib.Path("started").exists():
    time.sleep(0.02)
threading.Thread(target=served.close).start()
while not served._closed:
    time.sleep(0.02)
served.close()  # as a signal does
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the guard reads /proc")
def test_a_server_killed_while_it_ends_its_commands_leaves_none(tmp_path: Path) -> None:
    stubborn, folder = tmp_path / "stubborn", tmp_path / "folder"
    stubborn.write_text(STUBBORN)
    stubborn.chmod(0o755)
    folder.mkdir()
    subprocess.run([sys.executable, "-c", SERVER, str(stubborn)], cwd=folder, check=True, timeout=300)
    ends, looks_without = time.monotonic() + 300, 0
    while looks_without < 5 and time.monotonic() < ends:  # the shell may be killed while it starts its last `sleep`
        looks_without = 0 if left_in(folder) else looks_without + 1
        time.sleep(0.1)
    assert (folder / "started").exists()
    assert looks_without == 5, left_in(folder)
