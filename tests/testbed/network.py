"""Two nodes on one machine, joined by a wire of a given rate and delay: network namespaces and a relay between them."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ETHERNET_BYTES = 14  # of each frame, which the relay counts as well
_HEADER_BYTES = 20 + 32  # of each frame, for IP and TCP with its timestamps
_RELAY = Path(__file__).parent / "relay.c"


class Unavailable(Exception):  # noqa: N818
    """Why there can be no such network here."""


@dataclass(frozen=True)
class Node:
    """A network namespace with one device. What runs in it by `command` sees a host name of its own."""

    namespace: str
    device: str
    address: str
    host: str

    def command(self, *words: str) -> list[str]:
        """The command line that runs these words on the node, before what else this machine has to do."""
        alone = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.host]
        return ["nice", "-n", "-20", "ip", "netns", "exec", self.namespace, *alone, *words]


@dataclass(frozen=True)
class Wire:
    """What joins the nodes, each way.

    The relay and the kernel take 20 to 40 us of a core for a frame: the faster the wire, the larger its frames must be.
    On a slow one large frames would set apart for long what waits for each other.
    """

    bits_per_s: float
    delay_s: float
    mtu: int

    @property
    def gb_per_s(self) -> float:
        """What TCP can carry, 1e9 bytes per second: full segments, one after the other."""
        return self.bits_per_s / 8 / 1e9 * (self.mtu - _HEADER_BYTES) / (self.mtu + _ETHERNET_BYTES)


SLOW = Wire(200e6, 1e-3, mtu=9000)
FAST = Wire(1e9, 0.1e-3, mtu=32000)


@contextmanager
def shaped(wire: Wire) -> Iterator[list[Node]]:
    """Two nodes joined by it. Raises Unavailable where that takes what this machine lacks."""
    _check()
    pid = os.getpid()
    third, fourth = 10 + pid // 250 % 50, pid % 250 + 1
    nodes = [
        Node(f"dptune-bed-{pid}-{i}", f"bed{i}", f"10.{third}.{fourth}.{i + 1}", f"bed-node-{i}") for i in range(2)
    ]
    relay = None
    try:
        for node in nodes:
            _ip("netns", "add", node.namespace)
        places = [word for node in nodes for word in (node.namespace, node.device)]
        relay = subprocess.Popen(
            [_built_relay(), str(wire.bits_per_s), str(wire.delay_s), *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for its user, whose end it sees
        )
        assert relay.stdout is not None
        if not relay.stdout.readline():
            raise Unavailable("the relay between the namespaces does not start here")
        for node in nodes:
            inside = ("-n", node.namespace)
            _ip(*inside, "address", "add", f"{node.address}/24", "dev", node.device)
            _ip(*inside, "link", "set", node.device, "mtu", str(wire.mtu), "txqueuelen", "10000", "up")
            _ip(*inside, "link", "set", "lo", "up")
            _steady_tcp(node)
        yield nodes
    finally:
        if relay is not None:
            assert relay.stdin is not None
            assert relay.stdout is not None
            relay.stdin.close()
            relay.stdout.close()
            relay.wait(timeout=30)
        for node in nodes:
            subprocess.run(["ip", "netns", "delete", node.namespace], check=False, stderr=subprocess.DEVNULL)


def _check() -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise Unavailable("a shaped network needs root")
    for program in ("cc", "ip", "unshare", "hostname", "nice"):
        if shutil.which(program) is None:
            raise Unavailable(f"a shaped network needs the program {program}")
    if not os.path.exists("/dev/net/tun"):  # noqa: PTH110
        raise Unavailable("a shaped network needs /dev/net/tun")


@cache
def _built_relay() -> str:
    """The relay's program, in a folder that is gone with this process."""
    folder = tempfile.mkdtemp(prefix="dptune-relay-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = Path(folder) / "relay"
    done = subprocess.run(["cc", "-O2", "-o", program, _RELAY], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"the relay between the namespaces cannot be built here: {done.stderr.strip()}")
    return str(program)


def _steady_tcp(node: Node) -> None:
    """Without pacing by guesses of the rate, as BBR does, and without a slow start after each pause of the script."""
    for name, value in (("tcp_congestion_control", "reno"), ("tcp_slow_start_after_idle", "0")):
        _ip("netns", "exec", node.namespace, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"`ip {' '.join(words)}` fails here: {done.stderr.strip()}")
