"""How long DDP sends buffers before forward passes, by step."""

from collections import defaultdict

import pytest

from .conftest import SHORT

SCRIPT = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


@pytest.mark.records
def test_each_step_has_the_time_of_its_broadcasts(profile):
    run = profile(SCRIPT, *SHORT, "-q", "--nproc-per-node", "2")
    assert run.status == 0, run.err
    for rank in range(2):
        window = run.facts(rank).window("untraced")
        assert len(window.buffer_sync_ns) == window.steps > 0
        assert all(0 < ns < step for ns, step in zip(window.buffer_sync_ns, window.durations_ns, strict=True))


def test_the_time_is_that_of_the_thread_that_calls(monkeypatch):
    pytest.importorskip("torch", reason="the module that is tested imports it")
    from torch.nn.parallel import DistributedDataParallel

    from dptune.capture.injected.observe import meters

    moments = iter((100, 350))
    monkeypatch.setattr(DistributedDataParallel, "_sync_buffers", lambda this: this)
    monkeypatch.setattr(meters.time, "perf_counter_ns", lambda: next(moments))
    metered = meters.Meters.__new__(meters.Meters)
    metered._tallies = defaultdict(meters.Tally)
    metered._meter_buffers()
    assert DistributedDataParallel._sync_buffers("module") == "module"
    assert metered.take().buffer_sync_ns == 250
    assert metered.take().buffer_sync_ns == 0
