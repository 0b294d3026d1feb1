"""What NCCL's own log says of how this rank is connected: the transport of each channel, and the network it found.

NCCL writes it while it connects; `dptune profile --nccl-log` asks for it, in a file for each process. A file that the
user named is not read: it may be a pipe or a terminal.
Source of the lines: NCCL 2.4 to 2.28, as logs that users have published show them.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from dptune.runfile.communication import ChannelFacts, NcclFacts

FILE = "NCCL_DEBUG_FILE"
OURS = "nccl.%h.%p.log"  # of a host, of a process
_MOST_BYTES = 32_000_000  # of a log that is read
_VERSION = re.compile(r"NCCL version (\S+)")
# `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read`, `Channel 01 : 3[6000] -> 0[0] [send] via NET/IB/2/GDRDMA`
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[\w+\] )?via (\S+)")
# `NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>`, `NET/IB : No device found.`
_NETWORK = re.compile(r"NCCL INFO (NET/\w+) : (Using .*?|No device found)(?:[.;].*)?$")
_ADDRESS = re.compile(r":[0-9a-fA-F.:%\w]*<\d+>")
_OPTIONS = ("GDRDMA",)


def read() -> NcclFacts | None:
    """What the log of this process says; None where dptune asked for none, or it says nothing of connections yet."""
    asked = Path(os.environ.get(FILE, ""))
    if asked.name != OURS:
        return None
    host = socket.gethostname().partition(".")[0]
    log_path = asked.with_name(OURS.replace("%h", host).replace("%p", str(os.getpid())))
    if not log_path.is_file():
        return None
    with log_path.open("rb") as source:
        return parsed(source.read(_MOST_BYTES).decode("utf-8", "replace").splitlines())


def parsed(lines: Iterable[str]) -> NcclFacts | None:
    """The lines of a log as facts; None where none of them is of a connection."""
    version, networks, channels = None, dict[str, None](), Counter[tuple[int, int, str]]()
    for line in lines:
        if found := _CHANNEL.search(line):
            channels[int(found[1]), int(found[2]), _transport(found[3])] += 1
        elif found := _NETWORK.search(_ADDRESS.sub("", line)):
            networks[f"{found[1]}: {found[2].strip()}"] = None
        elif version is None and (found := _VERSION.search(line)):
            version = found[1]
    if not channels:
        return None
    channel_facts = [ChannelFacts(*key, channels=count) for key, count in sorted(channels.items())]
    return NcclFacts(version, list(networks), channel_facts)


def _transport(via: str) -> str:
    """`P2P`, `SHM`, `NET/IB/GDRDMA`, ...: without the number of the device, and without how memory is mapped."""
    parts = via.split("/")
    if parts[0] != "NET":
        return parts[0]
    return "/".join([*parts[:2], *(option for option in _OPTIONS if option in parts[2:])])
