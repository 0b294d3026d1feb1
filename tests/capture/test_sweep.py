"""`dptune links` with real ranks on this machine: what is kept, under a launcher, interrupted, alone. How right its
figures are is seen over a wire of known rate: tests/testbed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from dptune.capture import processes
from dptune.runfile import json_files
from dptune.runfile.links import LinkRecord

from .launching import BIN, DPTUNE, run, run_here, surroundings

pytestmark = pytest.mark.records
LINKS = (*DPTUNE, "links", "--backend", "gloo")


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch", reason="measuring needs torch")


def of_sweeps(cwd: Path) -> list[list[str]]:
    """Command lines of processes of a sweep that run in that folder."""
    return [
        processes.words(int(path.name))
        for path in Path("/proc").glob("[0-9]*")
        if any(entry.startswith(b"DPTUNE_SWEEP=") for entry in processes.environ(int(path.name)))
        and processes.alive(int(path.name))
        and os.path.realpath(path / "cwd") == os.path.realpath(cwd)
    ]


def test_every_kind_and_size(tmp_path: Path) -> None:
    words = ("--nproc-per-node", "2", "--sizes", "4k,10000,1m", "--seconds", "300", "--repeats", "3")
    done = run_here(*LINKS[len(DPTUNE) :], *words, "--format", "json", cwd=tmp_path)
    assert done.status == 0, done.err
    record = json_files.read(tmp_path / "dptune-runs" / "links.json", LinkRecord)
    assert json.loads(done.out)["kinds"][0]["kind"] == "all_reduce"
    assert (record.ended, record.backend, record.world_size, len(record.hosts)) == ("complete", "gloo", 2, 2)
    assert [kind.kind for kind in record.kinds] == ["all_reduce", "all_gather", "reduce_scatter", "p2p"]
    for kind in record.kinds:
        assert kind.ranks == [0, 1]
        assert [size.message_bytes for size in kind.sizes] == [4096, 10_000, 1 << 20]
        for size in kind.sizes:
            assert size.samples == 3
            assert size.calls >= 2 * size.samples
            assert size.calls % size.samples == 0
            assert 0 < size.q1_s <= size.median_s <= size.q3_s
    queued, *others = [[size.message_bytes for size in kind.queued] for kind in record.kinds]
    assert set(queued) <= {4096, 10_000}  # a busy machine may have no time for either
    assert others == [[], [], []]
    assert all(size.median_s > 0 and size.calls == 5 * 32 for size in record.kinds[0].queued)
    assert "dptune: all_reduce, 4.00 KiB: " in done.err


@pytest.mark.thorough
def test_under_a_launcher_rank_0_tells(tmp_path: Path) -> None:
    launcher = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "--no-python")
    done = run(*launcher, *LINKS, "--kinds", "p2p", "--sizes", "4k", "--repeats", "3", "-q", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.out.count("Links between 2 ranks") == 1
    record = json_files.read(tmp_path / "dptune-runs" / "links.json", LinkRecord)
    assert [(kind.kind, len(kind.sizes)) for kind in record.kinds] == [("p2p", 1)]
    assert record.kinds[0].no_fit.startswith("1 message size; a fit needs at least 3")


@pytest.mark.thorough
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    words = (
        "--nproc-per-node",
        "2",
        "--sizes",
        "4k,256m",
        "--repeats",
        "100",
        "--seconds",
        "300",
        "--kinds",
        "p2p,all_reduce",
    )
    process = subprocess.Popen(
        [*LINKS, *words], cwd=tmp_path, env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("dptune: all_reduce, 4.00 KiB"):
            break
    assert len(of_sweeps(tmp_path)) >= 2
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 130
    record = json_files.read(tmp_path / "dptune-runs" / "links.json", LinkRecord)
    assert record.ended == "interrupted"
    assert [len(kind.sizes) for kind in record.kinds] == [1, 1]
    assert "all_reduce" in out
    assert of_sweeps(tmp_path) == []


@pytest.mark.thorough
def test_what_there_is_no_time_for_is_left_out_and_said(tmp_path: Path) -> None:
    words = ("--nproc-per-node", "2", "--kinds", "all_reduce", "--sizes", "64k,4g", "--seconds", "3")
    done = run(*LINKS, *words, cwd=tmp_path)
    assert done.status == 0, done.err
    record = json_files.read(tmp_path / "dptune-runs" / "links.json", LinkRecord)
    assert record.ended == "partial"
    assert [size.message_bytes for size in record.kinds[0].sizes] == [64 << 10]
    assert record.kinds[0].left_out == "sizes from 4.00 GiB: the time limit of 3 s was reached"
    assert record.kinds[0].left_out in " ".join(done.out.split())


@pytest.mark.thorough
def test_ranks_that_do_not_meet_end_it(tmp_path: Path) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29733"}
    done = run(*LINKS, "--timeout", "3", cwd=tmp_path, env=alone, timeout=900)
    assert done.status == 2
    assert "dptune: error: nothing was measured: the ranks exited with status 1: see above" in done.err
    assert done.out == ""
    assert not (tmp_path / "dptune-runs" / "links.json").exists()
