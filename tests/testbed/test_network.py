"""The shaped network is what it says, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..quiet import measured_in_quiet  # noqa: TID252 - tests are no installed package
from .network import FAST, SLOW, Unavailable, Wire, shaped

SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 5001)) as listening:
    print("ready", flush=True)
    connection, _ = listening.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(20): connection.sendall(connection.recv(1))
    while connection.recv(1 << 20): pass
    connection.sendall(b"x")
"""
CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5001)) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trips = []
    for _ in range(20):
        begun = time.monotonic()
        connection.sendall(b"x")
        connection.recv(1)
        trips.append(time.monotonic() - begun)
    begun = time.monotonic()
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(min(trips), time.monotonic() - begun)
"""


def names() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@pytest.mark.alone
@pytest.mark.parametrize(("wire", "sent"), [(SLOW, 10_000_000), (FAST, 50_000_000)], ids=["slow", "fast"])
def test_rate_and_delay_are_those_asked_for(wire: Wire, sent: int) -> None:
    measured_in_quiet(lambda _: sent_over(wire, sent))
    assert f"dptune-bed-{os.getpid()}-" not in names()


def sent_over(wire: Wire, sent: int) -> None:
    try:
        with shaped(wire) as (near, far):
            trips, times = [], []
            for _ in range(3):
                with subprocess.Popen(
                    near.command(sys.executable, "-c", SERVER, near.address), stdout=subprocess.PIPE, text=True
                ) as server:
                    assert server.stdout is not None
                    assert server.stdout.readline() == "ready\n"
                    client = far.command(sys.executable, "-c", CLIENT, near.address, str(sent))
                    done = subprocess.run(client, capture_output=True, text=True, timeout=900, check=True)
                trip, time_s = map(float, done.stdout.split())
                trips.append(trip)
                times.append(time_s)
    except Unavailable as why:
        pytest.skip(str(why))
    assert 2 * wire.delay_s <= min(trips) < 2 * wire.delay_s + 0.5e-3
    carried = sent / statistics.median(times) / 1e9
    assert carried <= wire.gb_per_s  # nothing is faster than the wire
    assert carried > 0.85 * wire.gb_per_s


def test_nothing_is_left_when_its_user_is_killed() -> None:
    script = (
        "import sys, time; from network import SLOW, shaped\nwith shaped(SLOW): print('up', flush=True); time.sleep(60)"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
    )
    assert user.stdout is not None
    if user.stdout.readline() != "up\n":
        user.wait()
        pytest.skip("no shaped network here: see the other test")
    assert names().count(f"dptune-bed-{user.pid}-") == 2
    user.send_signal(signal.SIGKILL)
    user.wait()
    user.stdout.close()
    deadline = time.monotonic() + 300
    while f"dptune-bed-{user.pid}-" in names() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert f"dptune-bed-{user.pid}-" not in names()
