from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import PLAIN, SHORT, STARTED_IF_EACH_IS, Run, profiling_in

pytestmark = pytest.mark.records

TRACES = ("trace.json.gz", "detail.trace.json.gz")

TWO_RANKS = """
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(512, 64))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made = 0
    while made < 40:
        for (x,) in loader:
            if made % 2 == 0:
                with model.no_sync():
                    model(x).square().mean().backward()
            else:
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            made += 1
    print("script reached its end")
    dist.barrier()
    dist.destroy_process_group()
"""


def profiler_steps(trace: Path) -> list[int]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = (re.fullmatch(r"ProfilerStep#(\d+)", event["name"]) for event in events if event.get("ph") == "X")
    return sorted(int(match[1]) for match in names if match)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return profiling_in(tmp_path_factory.mktemp("two_ranks"), STARTED_IF_EACH_IS)(
        TWO_RANKS, "--nproc-per-node", "2", *SHORT
    )


def test_two_ranks_are_recorded_and_ended_at_the_same_step(two_ranks: Run) -> None:
    run = two_ranks
    assert run.status == 0, run.err
    assert "script reached its end" not in run.out
    ranks = {f"rank-0000{rank}.{kind}" for rank in (0, 1) for kind in ("facts.json", "trace.json.gz")}
    assert run.files == ranks | {f"rank-0000{rank}.detail.trace.json.gz" for rank in (0, 1)} | {"run.json"}
    assert (run.record.ending.how, run.record.ending.exit_status, run.record.world_size) == ("complete", 0, 2)
    assert f"next: dptune report {run.folder}" in run.err
    assert "`dptune links` measures it" not in run.err  # the run is not where links.json is looked for
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts.rank, facts.world_size, facts.backend, facts.ended) == (rank, 2, "gloo", "complete")
        assert [(w.name, w.first_step, w.steps) for w in facts.windows] == [
            ("untraced", 3, 4),
            ("light", 8, 2),
            ("detailed", 11, 1),
        ]
        assert profiler_steps(run.folder / f"rank-0000{rank}.trace.json.gz") == [8, 9]
        assert profiler_steps(run.folder / f"rank-0000{rank}.detail.trace.json.gz") == [11]


def test_facts_are_what_the_script_set(two_ranks: Run) -> None:
    facts = two_ranks.facts()
    (ddp,), (loader,), (optimizer,) = facts.ddp, facts.loaders, facts.optimizers
    weights = 64 * 64 * 4 + 64 * 4
    assert ddp.bucket_cap_bytes == int(0.01 * 1024 * 1024)
    assert ddp.gradient_bytes == sum(ddp.rebuilt_bucket_sizes) == 2 * weights
    assert len(ddp.rebuilt_bucket_sizes) > 1
    assert ddp.gradient_dtypes == ["float32"]
    assert (ddp.where, ddp.through, ddp.batch_norms) == ("train.py:10", "", 0)
    assert (loader.batch_size, loader.num_workers, loader.distributed_sampler) == (16, 0, True)
    assert loader.where == "train.py:8"
    assert (optimizer.name, optimizer.learning_rates, optimizer.parameters) == ("AdamW", [0.01], 2 * (64 * 64 + 64))
    untraced = facts.window("untraced")
    assert untraced is not None
    assert untraced.backwards == [2] * 4
    assert untraced.unsynced_backwards == [1] * 4
    assert untraced.loader_batches == [2] * 4
    assert untraced.loader_samples == [32] * 4
    assert all(0 < wait < step for wait, step in zip(untraced.loader_wait_ns, untraced.durations_ns, strict=True))
    assert facts.backward_where == "train.py:19"  # of the pass in which DDP reduced gradients
    assert facts.unread == {}


@pytest.mark.thorough
def test_one_process_without_a_process_group(profile: Callable[..., Run]) -> None:
    run = profile(PLAIN, *SHORT)
    assert run.status == 0, run.err
    assert run.files == {
        "run.json",
        "rank-00000.facts.json",
        "rank-00000.trace.json.gz",
        "rank-00000.detail.trace.json.gz",
    }
    assert run.facts().world_size == 1


@pytest.mark.thorough
def test_continue_lets_the_script_reach_its_end(profile: Callable[..., Run]) -> None:
    run = profile(PLAIN + "    print('end of', step)\n", "--continue", *SHORT)
    assert (run.status, run.out.strip()) == (0, "end of 59")
    assert run.record.ending.how == "complete"


@pytest.mark.parametrize(
    "env", [pytest.param({}, id="forked"), pytest.param({"PYTHONPATH": ""}, id="started", marks=pytest.mark.thorough)]
)
def test_no_more_of_torch_is_loaded_than_by_the_script(profile: Callable[..., Run], env: dict[str, str]) -> None:
    """torch's own optimizers load torch.compile, one of the script's own does not.

    In a fork something stands for the compiler until it is asked for more than it has (without_compiler/).
    """
    script = """
    import sys, torch
    class Descent(torch.optim.Optimizer):
        def add_param_group(self, group): self.param_groups.append({**group, "params": list(group["params"])})
        def step(self):
            for param in self.param_groups[0]["params"]: param.data -= param.grad
    model = torch.nn.Linear(8, 8)
    optimizer = Descent(model.parameters(), {})
    for step in range(40):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    loaded = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
    stands = type(sys.modules.get("torch._dynamo")).__name__ == "_Compiler"
    print(sorted(loaded - ({"torch._dynamo"} if stands else set())))
"""
    run = profile(script, "--continue", *SHORT, env=env)
    assert (run.status, run.out.strip()) == (0, "[]")
    assert run.record.ending.how == "complete"


def test_everything_after_the_script_is_the_scripts(profile: Callable[..., Run]) -> None:
    words = ("--quiet", "--warmup", "99", "-m", "--", "--run-dir=x", "last word")
    run = profile("    import sys\n    print(sys.argv[1:])\n    sys.exit(5)\n", *SHORT, arguments=words)
    assert run.out.strip() == str(list(words))
    assert run.status == 5


@pytest.mark.thorough
def test_a_module_is_run_as_python_does(profile: Callable[..., Run]) -> None:
    run = profile(PLAIN + "    print(__name__, sys.argv[1:])\n", "--continue", *SHORT, "-m", arguments=("train", "--x"))
    assert run.out.strip() == "__main__ ['--x']"
    assert run.facts().ended == "complete"


def test_a_second_optimizer_does_not_move_the_clock(profile: Callable[..., Run]) -> None:
    script = PLAIN + "        other.step()\n"
    script = script.replace("    for step", "    other = torch.optim.Adam(model.parameters())\n    for step")
    run = profile(script, *SHORT)
    assert run.facts().window("light").first_step == 8  # type: ignore[union-attr]
    assert profiler_steps(run.folder / "rank-00000.trace.json.gz") == [8, 9]
    assert [o.name for o in run.facts().optimizers] == ["SGD", "Adam"]
