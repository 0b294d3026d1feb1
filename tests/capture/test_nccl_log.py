"""NCCL's log, by lines as its versions write them: hosts and addresses are made up."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dptune.runfile.communication import ChannelFacts

from .conftest import PLAIN, SHORT, Run

LOG = """\
node-a:1893:1893 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>
node-a:1893:1893 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)
NCCL version 2.21.5+cuda12.4
node-a:1893:1940 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.5<0>
node-a:1893:1940 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0> [1]ib0:fe80::1%ib0<0>
node-a:1893:1940 [0] NCCL INFO Channel 00/02 :    0   1   2   3
node-a:1893:1940 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node-a:1893:1940 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node-a:1893:1940 [0] NCCL INFO Channel 02 : 0[1a000] -> 1[1b000] via P2P/IPC
node-a:1893:1940 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/direct pointer
node-a:1893:1940 [0] NCCL INFO Channel 02 : 3[3] -> 0[0] via SHM/direct/direct
node-a:1893:1940 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/2/GDRDMA
node-a:1893:1940 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA/Shared
node-a:1893:1940 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/2
node-a:1893:1940 [0] NCCL INFO Channel 00/0 : 4[0] -> 0[0] [receive] via NET/Socket/0
node-a:1893:1940 [0] NCCL INFO Connected all rings
"""


def test_transports_are_counted_by_pair_and_networks_named_without_addresses() -> None:
    pytest.importorskip("torch", reason="what runs beside a script needs torch")
    from dptune.capture.injected.observe import nccl_log

    told = nccl_log.parsed(LOG.splitlines())
    assert told is not None
    assert told.version == "2.21.5+cuda12.4"
    assert told.networks == [
        "NET/IB: Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]",
        "NET/Socket: Using [0]eth0 [1]ib0",
    ]
    assert told.channels == [
        ChannelFacts(0, 1, "P2P", 4),
        ChannelFacts(0, 8, "NET/IB/GDRDMA", 2),
        ChannelFacts(3, 0, "SHM", 1),
        ChannelFacts(4, 0, "NET/Socket", 1),
        ChannelFacts(8, 0, "NET/IB", 1),
    ]


def test_no_device_and_no_connection() -> None:
    pytest.importorskip("torch", reason="what runs beside a script needs torch")
    from dptune.capture.injected.observe import nccl_log

    line = "node-a:1:2 [0] NCCL INFO NET/IB : No device found.\n"
    told = nccl_log.parsed([line, "x NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"])
    assert told is not None
    assert told.networks == ["NET/IB: No device found"]
    assert nccl_log.parsed([line]) is None
    assert nccl_log.parsed(["", "NCCL INFO Channel 00 : 0[ -> 1[1] via", "\x00\xff"]) is None


def test_a_process_reads_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="what runs beside a script needs torch")
    from dptune.capture.injected.observe import nccl_log

    host = socket.gethostname().partition(".")[0]
    (tmp_path / f"nccl.{host}.{os.getpid()}.log").write_text(LOG)
    other = LOG.replace("via SHM", "via NET/Socket")
    (tmp_path / f"nccl.{host}.1.log").write_text(other)
    (tmp_path / f"nccl.another.{os.getpid()}.log").write_text(other)
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl.%h.%p.log"))
    told = nccl_log.read()
    assert told is not None
    assert ChannelFacts(3, 0, "SHM", 1) in told.channels
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "none" / "nccl.%h.%p.log"))
    assert nccl_log.read() is None
    os.mkfifo(tmp_path / "pipe")  # whose reading would wait for ever
    for users in ("/dev/stdout", str(tmp_path / "pipe"), str(tmp_path / "mine.%p.log")):
        monkeypatch.setenv("NCCL_DEBUG_FILE", users)
        assert nccl_log.read() is None
    monkeypatch.delenv("NCCL_DEBUG_FILE")
    assert nccl_log.read() is None


@pytest.mark.records
def test_the_option_has_it_written_into_the_run_folder(profile: Callable[..., Run]) -> None:
    """What NCCL would write, the script writes here: this machine has no GPU."""
    script = f"""
    import os, socket
    host = socket.gethostname().partition(".")[0]
    path = os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(os.getpid()))
    assert os.environ["NCCL_DEBUG"] == "INFO"
    open(path, "w").write({LOG!r})
    """
    run = profile(script + PLAIN, "--nccl-log", "-q", *SHORT)
    assert run.status == 0, run.err
    told = run.facts().nccl
    assert told is not None
    assert sum(one.channels for one in told.channels) == 9
