"""Gaps of known cause and size, planted in a real two-rank run that times them itself, and found in its account."""

from __future__ import annotations

import json

import pytest

from dptune.measure import measure
from dptune.trace import load

pytestmark = pytest.mark.records

SCRIPT = """
    import gc, json, os, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        slept = 0.0
        def __len__(self):
            return 4000
        def __getitem__(self, index):
            begun = time.perf_counter()
            time.sleep(0.003)
            Slow.slept += time.perf_counter() - begun
            return torch.full((64,), float(index % 7))

    def timed(act):
        begun = time.perf_counter()
        act()
        return time.perf_counter() - begun

    def busy():
        until = time.perf_counter() + 0.020
        while time.perf_counter() < until:
            pass

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    ballast = [[] for _ in range(500_000)]  # so that a collection takes a while
    with open(f"planted-{rank}.jsonl", "w") as log:
        for number, batch in enumerate(DataLoader(Slow(), batch_size=8), 1):
            planted = {"number": number, "input": Slow.slept}
            Slow.slept = 0.0
            planted["gc"] = timed(gc.collect)
            planted["host"] = timed(busy)
            loss = model(batch).sum()
            planted["late"] = timed(lambda: time.sleep(0.100)) if rank == 1 else 0.0
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.write(json.dumps(planted) + "\\n")
            log.flush()
"""


@pytest.fixture
def planted(profile, tmp_path):
    options = ("--nproc-per-node", "2", "--warmup", "2", "--unprofiled", "4", "--lean", "4", "--rich", "1")
    done = profile(SCRIPT, *options)
    assert done.status == 0, done.err
    logged = [
        {
            line["number"]: line
            for line in map(json.loads, (tmp_path / f"planted-{rank}.jsonl").read_text().splitlines())
        }
        for rank in range(2)
    ]
    return measure(load([done.folder])), logged, done


def test_planted_gaps_are_found_where_they_were_planted(planted):
    measured, logged, _ = planted
    for rank, truth in zip(measured.ranks, logged, strict=True):
        (device,) = rank.devices
        assert len(device.steps) == 4
        steps = [truth[step.number] for step in device.steps]
        total = device.total
        for cause in ("input", "gc"):
            assert getattr(total, f"{cause}_idle_ns") / 1e9 == pytest.approx(sum(s[cause] for s in steps), rel=0.1)
        # A busy loop and a sleep of the script are both the host's; the first is planted on both ranks.
        own = sum(step["host"] + step["late"] for step in steps)
        assert 0.9 * own <= total.host_idle_ns / 1e9
        assert total.unexplained_idle_ns == 0
    late = sum(logged[1][step.number]["late"] for step in measured.ranks[1].devices[0].steps)
    waited = measured.ranks[0].devices[0].total.exposed_waiting_ns / 1e9
    assert 0.9 * late <= waited
    assert measured.straggler.rank == 1
    assert measured.straggler.steps_share == 1.0
    arrival = measured.ranks[1].arrival
    assert arrival.cause == "host"
    assert arrival.cause_share >= 0.8
    assert arrival.lag_ns / 1e9 == pytest.approx(late / 4, rel=0.2)


def test_collections_of_garbage_are_timed_in_every_window(planted):
    _, logged, done = planted
    for rank, truth in enumerate(logged):
        for window in done.facts(rank).windows:
            for number, gc_ns in enumerate(window.gc_ns, window.first_step):
                assert gc_ns / 1e9 == pytest.approx(truth[number]["gc"], rel=0.2, abs=2e-3)
