"""A rank that is late by a known time is found over a network of known delay, though all ranks' steps take as long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from dptune.measure import measure
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.trace import load

from ..quiet import measured_in_quiet  # noqa: TID252 - tests are no installed package
from .network import SLOW, Node, Unavailable, shaped
from .running import recorded

# capture/test_planted finds a late rank over the loopback each time.
pytestmark = [pytest.mark.records, pytest.mark.alone, pytest.mark.thorough]

LATE_NS = 50_000_000
# Rank 1 is late by what it does in `late`, which it times itself.
TRAIN = """\
import atexit, json, time
import torch, torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, spent, matrix = dist.get_rank(), [], torch.randn(256, 256)
first = torch.nn.Linear(64, 64)

def late(*_):
    begun = time.perf_counter_ns()
    {late}
    spent.append(time.perf_counter_ns() - begun)

if rank == 1:
    atexit.register(lambda: json.dump(spent, open("spent.json", "w")))
if rank == 1 and {in_backward}:
    first.weight.register_hook(late)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(first, torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(60):
    if rank == 1 and not {in_backward}:
        late()
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SLEEPS = {"late": f"time.sleep({LATE_NS} / 1e9)", "in_backward": False}
MULTIPLIES = {
    "late": f"while time.perf_counter_ns() - begun < {LATE_NS}: torch.mm(matrix, matrix)",
    "in_backward": True,
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    pytest.importorskip("torch", reason="recording needs torch")
    try:
        with shaped(SLOW) as made:
            yield made
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.mark.parametrize(
    ("planted", "cause", "port"),
    [
        pytest.param(SLEEPS, "host", 29713, id="sleep"),
        pytest.param(MULTIPLIES, "more compute", 29714, id="backward"),
    ],
)
def test_the_late_rank_its_lag_and_why(
    nodes: list[Node], tmp_path: Path, planted: dict[str, Any], cause: str, port: int
) -> None:
    measured_in_quiet(lambda number: found(nodes, tmp_path / str(number), planted, cause, port))


def found(nodes: list[Node], folder: Path, planted: dict[str, Any], cause: str, port: int) -> None:
    """The lag is what rank 1 spent, by its own clock, give or take what the ranks differ in the rest of a step: 7 ms
    less to 9 ms more in the median step, on two cores with three times the work that they can do. The clocks of two
    hosts are aligned on the ends of collectives, which the wire's delay of 1 ms sets apart.
    """
    folder.mkdir()
    run = recorded(nodes, folder, TRAIN.format(**planted), port, untraced=12)
    measured = measure(load([run]))
    facts = [json_files.read(run / f"rank-0000{rank}.facts.json", Facts) for rank in range(2)]
    step_ns = [mean(one.window("untraced").durations_ns) for one in facts]
    assert step_ns[0] == pytest.approx(step_ns[1], abs=LATE_NS / 5)  # step times do not tell who is late

    spent_ns = json.loads((folder / "spent.json").read_text())
    assert min(spent_ns) >= LATE_NS
    assert (measured.straggler.rank, measured.straggler.steps_share) == (1, 1.0)
    arrival = measured.ranks[1].arrival
    assert 6 <= len(arrival.steps) <= 8  # one that the machine stood still in is set aside
    assert abs(median(step.lag_ns - spent_ns[step.number - 1] for step in arrival.steps)) <= 15e6
    assert measured.straggler.lag_ns == arrival.lag_ns
    assert arrival.cause == cause
    assert arrival.cause_share >= 0.8

    waiting = [rank.devices[0].total.exposed_waiting_ns for rank in measured.ranks]
    assert waiting[0] == pytest.approx(sum(step.lag_ns for step in arrival.steps), rel=0.1)
    assert waiting[1] < 0.1 * waiting[0]
