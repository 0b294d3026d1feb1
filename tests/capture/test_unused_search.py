"""How long DDP searches for unused parameters after forward passes, by step, and the lines of DDP's arguments."""

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
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        find_unused_parameters=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


@pytest.mark.records
def test_each_step_has_the_time_of_its_search_and_the_argument_its_line(profile):
    run = profile(SCRIPT, *SHORT, "-q", "--nproc-per-node", "2")
    assert run.status == 0, run.err
    for rank in range(2):
        facts = run.facts(rank)
        window = facts.window("untraced")
        assert len(window.unused_search_ns) == window.steps > 0
        assert all(0 < ns < step for ns, step in zip(window.unused_search_ns, window.durations_ns, strict=True))
        lines = facts.ddp[0].argument_lines
        assert lines == {"module": "train.py:10", "find_unused_parameters": "train.py:11"}


@pytest.mark.parametrize(("searches", "spent_ns"), [(True, 250), (False, 0)])
def test_the_time_is_that_of_modules_that_search(monkeypatch, searches, spent_ns):
    pytest.importorskip("torch", reason="the module that is tested imports it")
    from torch.nn.parallel import DistributedDataParallel

    from dptune.capture.injected.observe import meters

    class Module:
        find_unused_parameters, static_graph, require_backward_grad_sync = searches, False, True

    moments = iter((100, 350))
    monkeypatch.setattr(DistributedDataParallel, "_post_forward", lambda this, output: output)
    monkeypatch.setattr(meters.time, "perf_counter_ns", lambda: next(moments))
    metered = meters.Meters.__new__(meters.Meters)
    metered._tallies = defaultdict(meters.Tally)
    metered._meter_search()
    assert DistributedDataParallel._post_forward(Module(), "output") == "output"
    assert metered.take().unused_search_ns == spent_ns
