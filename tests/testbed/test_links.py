"""`dptune links` over a wire of known rate and delay, and a training over the same wire, say what the wire is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dptune.measure import measure
from dptune.measure.communication.links import Sweep, from_sweep
from dptune.measured import LinkFigures
from dptune.runfile import json_files
from dptune.runfile.links import LinkRecord
from dptune.trace import load

from ..quiet import measured_in_quiet  # noqa: TID252 - tests are no installed package
from .network import FAST, SLOW, Node, Unavailable, Wire, shaped
from .running import SHORTER_IMPORT, on_both, recorded

pytestmark = [pytest.mark.records, pytest.mark.alone]

# Models with their gradients in one bucket each, which are communicated one after the other.
TRAIN = """\
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
models = [torch.nn.Linear(n, m, bias=False) for n, m in {layers}]
models = [torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=64) for model in models]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
for step in range(60):
    for model in models:
        model(torch.randn(2, model.module.in_features)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Bed:
    """A wire, the nodes it joins, and what is sent over it.

    `least` is the share of the wire's rate that must be found where data goes one way at a time, and where it goes both
    ways at once. The relay is one process that shares the cores of this machine with both ranks. At 200 Mbit/s it is
    idle most of the time. At 1 Gbit/s it needs some 20 % of a core each way, and frames are late where both ranks have
    the cores: on two cores with twice the work that they can do, a relay that needed 40 % found 90 to 96 % of the rate
    one way, and 76 to 99 % both ways.
    """

    wire: Wire
    nodes: list[Node]
    sizes: str
    seconds: str
    layers: tuple[tuple[int, int], ...]
    least: tuple[float, float]
    off: float  # share by which a call of the training may differ from what the sweep says

    @property
    def delay_us(self) -> float:
        return self.wire.delay_s * 1e6


BEDS = {
    "slow": (SLOW, "4k,16k,64k,256k,1m,2m", "8", ((128, 128), (256, 512), (1024, 512)), (0.9, 0.85), 0.15),
    "fast": (FAST, "4k,64k,256k,1m,4m,8m", "8", ((512, 128), (1024, 512), (1024, 2048)), (0.8, 0.6), 0.4),
}


@pytest.fixture(scope="module", params=["slow", pytest.param("fast", marks=pytest.mark.thorough)])
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    pytest.importorskip("torch", reason="measuring needs torch")
    wire, *sent = BEDS[request.param]
    try:
        with shaped(wire) as nodes:
            yield Bed(wire, nodes, *sent)
    except Unavailable as why:
        pytest.skip(str(why))


def test_a_sweep_shows_the_wire(bed: Bed, tmp_path: Path) -> None:
    measured_in_quiet(lambda number: swept(bed, tmp_path / f"sweep-{number}"))


@pytest.mark.thorough
def test_a_training_shows_the_wire_as_a_sweep_does(bed: Bed, tmp_path: Path) -> None:
    sweep = measured_in_quiet(lambda number: swept(bed, tmp_path / f"sweep-{number}"))
    measured_in_quiet(lambda number: trained(bed, sweep, tmp_path / f"training-{number}"))


def swept(bed: Bed, place: Path) -> LinkFigures:
    """What a sweep finds of all-reduce; alpha and beta of it and of p2p are those of the wire.

    p2p: a message takes the delay, and the wire its rate. No measurement beats either; what both processes and the
    relay take to wake up adds to alpha, three times 50 to 250 us.
    All-reduce of two ranks: two collectives that depend on each other at least, each of half the message each way, so
    that as many bytes as the message has cross each way: alpha is no less than twice the delay, beta the same. What
    gloo's threads take to wake each other adds 1 to 4 ms, as it does without any wire.
    A fit divides differences of noisy times, so its beta may exceed the rate, which the times themselves never do.
    """
    cwds = [place / f"node{i}" for i in (0, 1)]
    for cwd in cwds:
        cwd.mkdir(parents=True)
    words = ("links", "--kinds", "all_reduce,p2p", "--sizes", bed.sizes, "--seconds", bed.seconds)
    on_both(bed.nodes, cwds, words, env=SHORTER_IMPORT)
    assert not (cwds[1] / "dptune-runs" / "links.json").exists()
    record = json_files.read(cwds[0] / "dptune-runs" / "links.json", LinkRecord)
    assert (record.backend, record.world_size, record.hosts) == ("gloo", 2, ["bed-node-0", "bed-node-1"])
    for matches, kind in enumerate(("p2p", "all_reduce"), 1):
        (sizes,) = [one.sizes for one in record.kinds if one.kind == kind]
        for size in sizes:
            assert size.median_s >= matches * bed.wire.delay_s + size.message_bytes / bed.wire.gb_per_s / 1e9
            assert size.q1_s <= size.median_s <= size.q3_s
    links = {one.kind: one for one in from_sweep(Sweep(record, "links.json"))}
    p2p, reduce = links["p2p"], links["all_reduce"]
    assert bed.delay_us <= p2p.alpha_us <= bed.delay_us + 1500
    assert bed.least[0] * bed.wire.gb_per_s <= p2p.busbw_gb_per_s <= 1.1 * bed.wire.gb_per_s
    assert 2 * bed.delay_us <= reduce.alpha_us <= 4 * bed.delay_us + 6000
    assert bed.least[1] * bed.wire.gb_per_s <= reduce.busbw_gb_per_s <= 1.1 * bed.wire.gb_per_s
    assert {p2p.scope, reduce.scope} == {"inter-node"}
    assert max(p2p.residual_share, reduce.residual_share) < 0.2
    return reduce


def trained(bed: Bed, sweep: LinkFigures, place: Path) -> None:
    """A training shows the same links.

    It has 8 calls of each of three sizes, so its alpha is the less certain; what its calls took is compared.
    """
    place.mkdir()
    measured = measure(load([recorded(bed.nodes, place, TRAIN.format(layers=bed.layers), port=29712)]))
    (link,) = [one for one in measured.links if one.kind == "all_reduce"]
    assert (link.basis, link.scope, link.ranks) == ("trace", "inter-node", [0, 1])
    assert [size.message_bytes for size in link.sizes] == [4 * n * m for n, m in bed.layers]
    assert link.shared_calls <= 4  # of 24
    assert bed.least[1] * bed.wire.gb_per_s <= link.busbw_gb_per_s <= 1.1 * bed.wire.gb_per_s
    assert 2 * bed.delay_us <= link.alpha_us <= 4 * bed.delay_us + 10_000
    for one in measured.collectives:
        if one.kind == "all_reduce" and one.message_bytes >= 512 << 10:
            expected_ns = sweep.alpha_us * 1e3 + one.message_bytes / sweep.algbw_gb_per_s
            assert one.transfer_ns == pytest.approx(expected_ns, rel=bed.off)
            assert one.busbw_gb_per_s == pytest.approx(one.message_bytes / expected_ns, rel=bed.off)
