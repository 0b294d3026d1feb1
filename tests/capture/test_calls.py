"""Collectives that a script calls itself are counted by line and by group; those of DDP are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SHORT, Run

pytestmark = pytest.mark.records

SCRIPT = """
    import torch
    import torch.distributed as dist
    from torch.distributed import all_reduce
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    dist.barrier()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def average(model):
        for parameter in model.parameters():
            all_reduce(parameter.grad)

    for step in range(40):
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()
        average(model)
        optimizer.step()
        optimizer.zero_grad()
        seen = [None] * 2
        dist.all_gather_object(seen, {"loss": 1.0, "step": step})
        all_reduce(torch.ones(100), group=alone)
        all_reduce(torch.ones(100), dist.ReduceOp.SUM, alone)
        parts = [torch.empty(10) for _ in range(2)]
        dist.all_gather(parts, torch.ones(10))
        dist.all_gather([torch.empty(4, 8) for _ in range(2)], model.module(torch.ones(4, 8)))
        if step % 4 == 0:
            dist.barrier()
    dist.barrier()
    dist.destroy_process_group()
"""


def test_they_are_counted_by_function_line_and_group(profile: Callable[..., Run]) -> None:
    run = profile(SCRIPT, *SHORT, "-q", "--nproc-per-node", "2")
    assert run.status == 0, run.err
    for rank in range(2):
        facts = run.facts(rank)
        assert facts.calls_steps >= 4
        told = {(one.function, one.where): one for one in facts.calls}
        # all are called between two steps' ends, so that each step has one of each
        each = {
            ("all_gather_object", "train.py:25"): ([0, 1], 0),
            ("all_reduce", "train.py:26"): ([rank], 400),
            ("all_reduce", "train.py:27"): ([rank], 400),
            ("all_gather", "train.py:29"): ([0, 1], 80),
            ("all_gather", "train.py:30"): ([0, 1], 256),
        }
        for key, (ranks, size) in each.items():
            assert told[key].ranks == ranks
            assert told[key].calls == facts.calls_steps
            assert told[key].sent_bytes == size * facts.calls_steps
            assert told[key].host_ns > 0
            assert (told[key].after_updates, told[key].caller) == (told[key].calls, "")
            assert told[key].trained == (key[1] == "train.py:30")  # rows that have a graph
        gradients = told.pop(("all_reduce", "train.py:16"))
        assert (gradients.calls, gradients.sent_bytes) == (2 * facts.calls_steps, 72 * 4 * facts.calls_steps)
        assert (gradients.after_updates, gradients.caller) == (0, "average")
        assert told.keys() - each.keys() <= {("barrier", "train.py:32")}
        (ddp,) = facts.ddp
        assert ddp.ranks == [0, 1]


@pytest.mark.thorough
def test_a_compiled_collective_stays_compiled(profile: Callable[..., Run]) -> None:
    script = """
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @torch.compile(backend="eager", fullgraph=True)
        def summed(x):
            y = x * 2
            dist.all_reduce(y)
            return y + 1

        for step in range(40):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            assert summed(torch.ones(4)).tolist() == [2.0 * dist.get_world_size() + 1] * 4
        dist.barrier()
        dist.destroy_process_group()
    """
    run = profile(script, *SHORT, "-q", "--nproc-per-node", "2")
    assert run.status == 0, run.err
    assert [one for one in run.facts().calls if one.function == "all_reduce"] == []


LIBRARY = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def shared(value):
    dist.all_reduce(value)


class Logger:
    @torch.no_grad()
    def log(self, value):
        dist.barrier()
        shared(value)
"""
LOGS = """
    import sys
    sys.path.insert(0, "site-packages")
    import torch
    import torch.distributed as dist
    from metrics import Logger

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logger = Logger()
    for step in range(40):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        logger.log(torch.ones(2))
        logger.log(torch.ones(3))
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.thorough
def test_what_a_library_calls_is_counted_for_each_line_that_calls_it(
    profile: Callable[..., Run], tmp_path: Path
) -> None:
    package = tmp_path / "site-packages" / "metrics"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    run = profile(LOGS, *SHORT, "-q", "--nproc-per-node", "2")
    assert run.status == 0, run.err
    told = [one for one in run.facts().calls if one.library]
    assert {(one.function, one.where) for one in told} == {
        (function, f"train.py:{line}") for function in ("barrier", "all_reduce") for line in (16, 17)
    }
    assert {(one.library, one.through.rpartition(".")[2]) for one in told} == {("metrics", "log")}
    assert {one.through.partition(".")[0] for one in told} == {"metrics"}
    sent = {one.where: one.sent_bytes / one.calls for one in told if one.function == "all_reduce"}
    assert sent == {"train.py:16": 8, "train.py:17": 12}


SHARDED = """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        model(torch.ones(4, 8)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        whole = [one.full_tensor() for one in model.parameters()]
        squares = sum(one.grad.norm() ** 2 for one in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.thorough
def test_what_a_sharded_tensor_communicates_is_told_from_what_its_wrapper_does(profile: Callable[..., Run]) -> None:
    run = profile(SHARDED, *SHORT, "-q", "--nproc-per-node", "2")
    assert run.status == 0, run.err
    facts = run.facts()
    steps = facts.calls_steps
    told = {(one.function, one.where, one.library, one.through): one for one in facts.calls}
    own, clipped = "redistribute_local_tensor", "torch.clip_grad_norm_"
    each = {
        ("full_tensor", "train.py:14", "", ""): 2,  # weight and bias
        (own, "train.py:15", "", ""): 2,
        (own, "train.py:13", "torch", clipped): 1,
    }
    assert {key: round(told[key].calls / steps) for key in each} == each  # the script may go on when facts are gathered
    others = {(library, through) for _, _, library, through in told.keys() - each.keys()}
    assert others <= {("torch", ""), ("", "")}  # FSDP's, and the barrier at the end
    line = told["full_tensor", "train.py:14", "", ""]
    assert line.ranks == [0, 1]
    assert line.untraced_calls == 2 * 4
    assert 0 < line.untraced_ns < line.host_ns
