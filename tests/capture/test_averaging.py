"""Whether an optimizer steps on averaged gradients is recorded as the gradients themselves say."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dptune.runfile.facts import Facts

from .conftest import SHORT, Run
from .launching import run

pytestmark = pytest.mark.records

SCRIPT = Path(__file__).parent / "averaging.py"
APART = {
    *("first-synced", "never-synced", "forward-alone", "past-the-wrapper", "kept-gradients", "bucket-views-first"),
}
FINE = {
    *("plain", "accumulated", "last-synced", "backward-alone", "looks-between", "another-pass-after"),
    *("another-module-alone", "half-of-it", "bucket-views", "static-graph"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--compiled",)])
def test_what_is_recorded_is_what_the_gradients_are(tmp_path: Path, options: tuple[str, ...]) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT), *options)
    done = run(sys.executable, *words, cwd=tmp_path)
    assert done.status == 0, done.err
    found = re.findall(r"^(\S+) equal=(\w+) recorded=(\w+)$", done.out, re.MULTILINE)
    assert {way for way, equal, _ in found if equal == "False"} == APART
    assert {way for way, _, recorded in found if recorded == "True"} == APART
    assert {way for way, _, _ in found} == APART | FINE


ACCUMULATES = """
    import contextlib, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(120):
        with contextlib.nullcontext() if i % 2 == {synced} else model.no_sync():
            model(torch.randn(4, 8)).square().mean().backward()  # HERE
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
"""


LATE = """
    import contextlib, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(60):
        with model.no_sync() if i % 2 == 0 and {whole} else contextlib.nullcontext():
            loss = model(torch.randn(4, 8)).square().mean()  # FORWARD
            with model.no_sync() if i % 2 == 0 else contextlib.nullcontext():
                loss.backward()  # BACKWARD
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("whole", [False, True])
def test_no_sync_around_backward_passes_alone(profile: Callable[..., Run], whole: bool) -> None:
    script = LATE.format(whole=whole)
    run = profile(script, "--nproc-per-node", "2", *SHORT)
    assert run.status == 0, run.err
    lines = [number for number, row in enumerate(script.splitlines(), 1) if "WARD" in row]
    assert run.facts(0).late_no_sync == ([] if whole else [f"train.py:{line}" for line in lines])


def sums(facts: Facts) -> list[float]:
    return facts.windows[-1].parameter_sums


@pytest.mark.parametrize("synced", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_the_facts_of_a_recording(profile: Callable[..., Run], synced: int) -> None:
    script = ACCUMULATES.format(synced=synced)
    run = profile(script, "--nproc-per-node", "2", *SHORT)
    assert run.status == 0, run.err
    line = next(number for number, row in enumerate(script.splitlines(), 1) if "HERE" in row)
    for rank in (0, 1):
        facts = run.facts(rank)
        updates = [window.unsynced_updates for window in facts.windows]
        assert updates == [[not synced] * window.steps for window in facts.windows]
        assert facts.unsynced_where == (None if synced else f"train.py:{line}")
    assert len(sums(run.facts(0))) == 2  # weight and bias
    assert (sums(run.facts(0)) == sums(run.facts(1))) == bool(synced)
