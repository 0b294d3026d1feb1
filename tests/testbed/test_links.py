"""`dptune links` over a wire of known rate and delay, and a training over the same wire, say what the wire is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dptune.measure import measure
from dptune.measure.exchange.links import Sweep, from_sweep
from dptune.runfile import form
from dptune.runfile.links import LinkRecord
from dptune.trace import load

from .network import SLOW, Node, Unavailable, shaped

pytestmark = pytest.mark.records

# Three models, each with its gradients in one bucket, that are exchanged one after the other: 64 KiB, 512 KiB, 2 MiB.
TRAIN = """\
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
models = [torch.nn.Linear(n, m, bias=False) for n, m in ((128, 128), (256, 512), (1024, 512))]
models = [torch.nn.parallel.DistributedDataParallel(model) for model in models]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
for step in range(60):
    for model in models:
        model(torch.randn(2, model.module.in_features)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    pytest.importorskip("torch", reason="measuring needs torch")
    try:
        with shaped(SLOW) as made:
            yield made
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def swept(nodes: list[Node], tmp_path_factory: pytest.TempPathFactory) -> LinkRecord:
    """What the node with rank 0 measured of all-reduce and p2p."""
    cwds = [tmp_path_factory.mktemp(f"node{i}") for i in (0, 1)]
    words = ("links", "--kinds", "all_reduce,p2p", "--sizes", "4k,16k,64k,256k,1m,2m", "--seconds", "30", "-q")
    on_both(nodes, cwds, words, (), 29711)
    assert not (cwds[1] / "dptune-runs" / "links.json").exists()
    return form.read(cwds[0] / "dptune-runs" / "links.json", LinkRecord)


def on_both(nodes: list[Node], cwds: list[Path], words: tuple[str, ...], then: tuple[str, ...], port: int) -> None:
    """dptune on both nodes at once, to the end of both."""
    started = []
    for i, (node, cwd) in enumerate(zip(nodes, cwds, strict=True)):
        where = ("--nnodes", "2", "--node-rank", str(i), "--master-addr", nodes[0].address, "--master-port", str(port))
        command = node.command(sys.executable, "-m", "dptune", *words, *where, *then)
        env = {**os.environ, "GLOO_SOCKET_IFNAME": node.device, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, cwd=cwd, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL))
    try:
        said = [process.communicate(timeout=100)[1].decode() for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], said


def test_alpha_and_beta_are_those_of_the_wire(swept: LinkRecord) -> None:
    """p2p: a message takes the delay, and the wire its rate. No measurement beats either; what both processes and the
    relay take to wake up adds to alpha, three times some 50 us, and at most a tenth is lost of the rate.
    All-reduce of two ranks: two exchanges that depend on each other at least, each of half the message each way, so
    that as many bytes as the message has cross each way: alpha is no less than twice the delay, beta the same.
    """
    assert (swept.backend, swept.world_size, swept.hosts) == ("gloo", 2, ["bed-node-0", "bed-node-1"])
    by_kind = {one.kind: one for one in from_sweep(Sweep(swept, "links.json"))}
    p2p, reduce = by_kind["p2p"], by_kind["all_reduce"]
    delay_us = SLOW.delay_s * 1e6
    assert delay_us <= p2p.alpha_us <= delay_us + 500
    assert 0.9 * SLOW.gb_per_s <= p2p.busbw_gb_per_s <= 1.01 * SLOW.gb_per_s
    assert 2 * delay_us <= reduce.alpha_us <= 8 * delay_us
    assert 0.9 * SLOW.gb_per_s <= reduce.busbw_gb_per_s <= 1.03 * SLOW.gb_per_s
    assert {one.scope for one in by_kind.values()} == {"inter-node"}
    assert all(one.residual_share < 0.1 for one in by_kind.values())
    assert all(one.q1_s <= one.median_s <= one.q3_s for kind in swept.kinds for one in kind.sizes)


def test_a_training_over_the_wire_sees_the_same_links(nodes: list[Node], swept: LinkRecord, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    windows = ("--warmup", "2", "--unprofiled", "4", "--lean", "8", "--rich", "2")
    on_both(nodes, [tmp_path] * 2, ("profile", *windows, "--run-dir", "run"), ("train.py",), 29712)
    measured = measure(load([tmp_path / "run"]))
    (link,) = [one for one in measured.links if one.kind == "all_reduce"]
    assert (link.basis, link.scope, link.ranks) == ("trace", "inter-node", [0, 1])
    assert [size.message_bytes for size in link.sizes] == [64 << 10, 512 << 10, 2 << 20]
    assert link.shared_calls <= 4  # of 24
    assert 0.85 * SLOW.gb_per_s <= link.busbw_gb_per_s <= 1.05 * SLOW.gb_per_s
    assert 2 * SLOW.delay_s * 1e6 <= link.alpha_us <= 8 * SLOW.delay_s * 1e6
    (sweep,) = [one for one in from_sweep(Sweep(swept, "")) if one.kind == "all_reduce"]
    for one in measured.collectives:
        if one.kind == "all_reduce" and one.message_bytes >= 512 << 10:
            expected_ns = sweep.alpha_us * 1e3 + one.message_bytes / sweep.algbw_gb_per_s
            assert one.transfer_ns == pytest.approx(expected_ns, rel=0.15)
            assert one.busbw_gb_per_s == pytest.approx(one.message_bytes / expected_ns, rel=0.15)
