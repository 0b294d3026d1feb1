"""Two nodes: two network namespaces of this machine, joined by a pair of virtual network devices.

Each runs `dptune profile --nnodes 2 --node-rank i` as a node of its own would, once into a folder that both share, and
once into a folder each, as nodes without a shared file system do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dptune.capture import processes

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import SHORT
from .launching import DPTUNE, TRAIN, Done, facts_in, latest, left_behind, record_in, run, surroundings

pytestmark = pytest.mark.records
_NAMES = re.compile(r"dptune-(\d+)-(\d+)-[01]\b")


@dataclass(frozen=True)
class Node:
    namespace: str
    device: str
    address: str


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


def remove_leftovers() -> None:
    """Namespaces of an earlier run of these tests that was killed: named after a process that is gone."""
    for name, pid, started in {(m[0], int(m[1]), int(m[2])) for m in _NAMES.finditer(ip("netns", "list").stdout)}:
        if processes.started(pid) != started:
            ip("netns", "delete", name)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    pytest.importorskip("torch", reason="recording needs torch")
    if shutil.which("ip") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    remove_leftovers()
    pid = os.getpid()
    third, fourth = 64 + pid // 250 % 190, pid % 250 + 1  # of no other test process on this machine
    made = [
        Node(f"dptune-{pid}-{processes.started(pid)}-{i}", f"dpt{i}", f"10.{third}.{fourth}.{i + 1}") for i in (0, 1)
    ]
    try:
        for node in made:
            done = ip("netns", "add", node.namespace)
            if done.returncode:
                pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
        one, two = made
        pair = ("type", "veth", "peer", "name", two.device, "netns", two.namespace)
        done = ip("-n", one.namespace, "link", "add", one.device, *pair)
        if done.returncode:
            pytest.skip(f"a pair of network devices cannot be made here: {done.stderr.strip()}")
        for node in made:
            ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", node.device)
            for device in (node.device, "lo"):
                assert ip("-n", node.namespace, "link", "set", device, "up").returncode == 0
        yield made
    finally:
        for node in made:
            ip("netns", "delete", node.namespace)


def profile(nodes: list[Node], cwds: list[Path], *words: str, port: int, script: str = TRAIN) -> list[Done]:
    """dptune on both nodes at once, to the end of both."""
    started = []
    for i, (node, cwd) in enumerate(zip(nodes, cwds, strict=True)):
        (cwd / "train.py").write_text(script)
        where = ("--nnodes", "2", "--node-rank", str(i), "--master-addr", nodes[0].address, "--master-port", str(port))
        command = ["ip", "netns", "exec", node.namespace, *DPTUNE, "profile", *SHORT, *where, *words, "train.py"]
        env = surroundings(GLOO_SOCKET_IFNAME=node.device, OMP_NUM_THREADS="1")
        started.append(
            subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        ends = [process.communicate(timeout=900) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [Done(process.returncode, *end) for process, end in zip(started, ends, strict=True)]


@pytest.mark.thorough
def test_with_a_shared_folder(nodes: list[Node], tmp_path: Path) -> None:
    done = profile(nodes, [tmp_path] * 2, "--nproc-per-node", "1", "--run-dir", "shared/run", port=29611)
    assert [one.status for one in done] == [0, 0], done
    folder = tmp_path / "shared" / "run"
    record = record_in(folder)
    assert (record.ending.how, record.world_size, record.nnodes) == ("complete", 2, 2)
    assert [(one.rank, one.ended) for one in facts_in(folder)] == [(0, "complete"), (1, "complete")]
    assert {path.name for path in folder.glob("launcher-*")} == {"launcher-node-0.json", "launcher-node-1.json"}
    assert not (folder / "live").exists()
    assert latest(tmp_path) == folder
    assert left_behind(folder) == []
    report = run(*DPTUNE, "report", str(folder), "--full", cwd=tmp_path)
    assert report.status == 0, report.err
    assert "Ranks (2)" in report.out
    assert "missing" not in report.out.partition("Rules that could not run")[0].partition("Collectives")[0]


@pytest.mark.thorough
def test_the_same_folder_twice_is_refused(nodes: list[Node], tmp_path: Path) -> None:
    first = profile(nodes, [tmp_path] * 2, "--run-dir", "run", port=29612)
    assert [one.status for one in first] == [0, 0], first
    before = (tmp_path / "run" / "run.json").read_bytes()
    again = profile(nodes, [tmp_path] * 2, "--run-dir", "run", port=29613)
    assert [one.status for one in again] == [2, 2]
    assert all("--run-dir: run contains a finished recording" in one.err for one in again)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


@pytest.mark.thorough
def test_without_a_shared_folder(nodes: list[Node], tmp_path: Path) -> None:
    cwds = [tmp_path / "disk0", tmp_path / "disk1"]
    for cwd in cwds:
        cwd.mkdir()
    done = profile(nodes, cwds, "--nproc-per-node", "1", "--rdzv-id", "job 7", port=29614)
    assert [one.status for one in done] == [0, 0], done
    folders = [cwd / "dptune-runs" / "job-7-train" for cwd in cwds]
    for i, folder in enumerate(folders):
        assert [(one.rank, one.ended) for one in facts_in(folder)] == [(i, "complete")]
        assert (record_in(folder).ending.how, record_in(folder).world_size) == ("complete", 2)
        assert f"1 rank recorded in {folder.relative_to(cwds[i])}" in done[i].err
        assert left_behind(folder) == []
    report = in_process.dptune("report", *map(str, folders), "--full", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "Ranks (2)" in report.stdout


@pytest.mark.thorough
def test_a_node_that_fails_is_what_run_json_says(nodes: list[Node], tmp_path: Path) -> None:
    script = TRAIN.replace("    optimizer.zero_grad()", "    if step == 8 and rank: os._exit(9)")
    done = profile(nodes, [tmp_path] * 2, "--run-dir", "run", port=29615, script=script)
    assert done[1].status == 9, done[1].err
    assert done[0].status not in (0, 9)
    ending = record_in(tmp_path / "run").ending
    assert ending.how == "failed"
    assert left_behind(tmp_path / "run") == []
    assert [one.rank for one in facts_in(tmp_path / "run")] == [0, 1]
