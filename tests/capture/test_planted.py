"""Gaps of known cause and size, planted in a real two-rank run that times them itself, and found in its account."""

from __future__ import annotations

import json
import shutil
from statistics import median

import pytest

from dptune.measure import measure
from dptune.trace import load

from ..quiet import measured_in_quiet  # noqa: TID252 - tests are no installed package

pytestmark = [pytest.mark.records, pytest.mark.alone]

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


OPTIONS = ("--nproc-per-node", "2", "--warmup", "2", "--untraced", "4", "--light", "4", "--detailed", "1", "--no-links")


def recorded(profile, script, folder):
    """The figures of a run, what each rank logged by step number, and the recording."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    done = profile(script, *OPTIONS)
    assert done.status == 0, done.err
    logs = [(folder / f"planted-{rank}.jsonl").read_text().splitlines() for rank in range(2)]
    return measure(load([done.folder])), [{line["number"]: line for line in map(json.loads, log)} for log in logs], done


def test_planted_gaps_are_found_where_they_were_planted(profile, tmp_path):
    measured_in_quiet(lambda _: found(*recorded(profile, SCRIPT, tmp_path)))


def found(measured, logged, done):
    for rank, truth in zip(measured.ranks, logged, strict=True):
        (device,) = rank.devices
        steps = [truth[step.number] for step in device.steps]
        assert len(steps) in (3, 4)  # where the machine stood still in one, that is set aside
        for cause in ("input", "gc"):
            idle = getattr(device.total, f"{cause}_idle_ns") / 1e9
            planted = sum(step[cause] for step in steps)  # by the script's clock, without what Python does around it
            assert 0.9 * planted <= idle <= 1.1 * planted + 0.005 * len(steps)
        # A busy loop and a sleep of the script are both the host's; the first is planted on both ranks.
        assert device.total.host_idle_ns / 1e9 >= 0.9 * sum(step["host"] + step["late"] for step in steps)
        assert device.total.unexplained_idle_ns == 0

    # What rank 1 did longer than rank 0, by its own clock: the sleep, and what a busy machine adds to the rest.
    numbers = [step.number for step in measured.ranks[1].devices[0].steps]
    longer = {
        cause: {number: logged[1][number][cause] - logged[0][number][cause] for number in numbers}
        for cause in ("input", "gc", "host", "late")
    }
    later = {number: sum(longer[cause][number] for cause in longer) for number in numbers}
    waited = measured.ranks[0].devices[0].total.exposed_waiting_ns / 1e9
    assert waited >= 0.9 * sum(max(0, late) for late in later.values()) - 0.02
    assert measured.straggler.rank == 1
    arrival = measured.ranks[1].arrival
    for step in arrival.steps:
        assert step.lag_ns / 1e9 == pytest.approx(max(0, later[step.number]), abs=0.03)
    # Before the first step's all-reduce there is none to compare from; on a busy machine rank 0 may be last to others.
    compared = [step.number for step in arrival.steps[1:] if step.lag_ns]
    assert len(compared) >= 2
    off = 0.15 * sum(later[number] for number in compared)
    for cause, planted in (("input", ["input"]), ("gc", ["gc"]), ("host", ["host", "late"])):
        more = arrival.more_ns.get(f"{cause}_idle_ns", 0) / 1e9
        assert more == pytest.approx(sum(longer[one][number] for one in planted for number in compared), abs=off)

    for rank, truth in enumerate(logged):
        for window in done.facts(rank).windows:
            for number, gc_ns in enumerate(window.gc_ns, window.first_step):
                assert gc_ns / 1e9 == pytest.approx(truth[number]["gc"], rel=0.2, abs=2e-3)


LATE_BACKWARD = """
    import json, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    matrix, spent = torch.randn(256, 256), [0.0]

    def more(gradient):
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.08:
            torch.mm(matrix, matrix)
        spent[0] += time.perf_counter() - begun
        return gradient

    if rank == 1:
        model[0].weight.register_hook(more)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with open(f"planted-{rank}.jsonl", "w") as log:
        for number in range(1, 400):
            model(torch.randn(16, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            log.write(json.dumps({"number": number, "backward": spent[0]}) + "\\n")
            log.flush()
            spent[0] = 0.0
"""


@pytest.mark.thorough
def test_a_late_backward_that_equal_step_times_hide(profile, tmp_path):
    measured_in_quiet(lambda _: hidden(*recorded(profile, LATE_BACKWARD, tmp_path)))


def hidden(measured, logged, done):
    steps = [median(done.facts(rank).window("untraced").durations_ns) for rank in range(2)]
    assert steps[0] == pytest.approx(steps[1], rel=0.1)  # each step takes both ranks as long
    assert (measured.straggler.rank, measured.straggler.steps_share) == (1, 1.0)
    arrival = measured.ranks[1].arrival
    for step in arrival.steps:
        assert step.lag_ns / 1e9 == pytest.approx(logged[1][step.number]["backward"], abs=0.03)
    assert arrival.cause == "more compute"
    assert arrival.cause_share >= 0.8
