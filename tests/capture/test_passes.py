"""Backward passes are counted by whether DDP reduced gradients in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kinds_of_scripts import FOLDER, KINDS, recorded

pytestmark = pytest.mark.records


@pytest.mark.thorough
def test_a_pass_that_does_not_reach_the_module_is_none_of_its_micro_batches(tmp_path: Path) -> None:
    """Eight chunks reduce gradients. The pass of the loss comes first, and only reaches their features."""
    kind = KINDS["chunks_of_a_batch"]
    run = recorded(kind, tmp_path)
    assert run.status == 0, run.err
    facts = run.facts()
    assert {count for window in facts.windows for count in window.backwards} == {9}
    assert {count for window in facts.windows for count in window.unsynced_backwards} == {1}
    rows = (FOLDER / "chunks_of_a_batch.py").read_text().splitlines()
    assert facts.backward_where is not None
    assert "gradient).sum().backward()" in rows[int(facts.backward_where.rpartition(":")[2]) - 1]


WINDOWS = ("--warmup", "2", "--untraced", "3", "--light", "2", "--detailed", "0")
DRIFTING = """
    import time
    import torch, torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        time.sleep(0.02 * dist.get_rank())
        model.module(torch.randn(4, 8)).mean().backward()  # past DDP: nothing keeps the ranks in step
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_ranks_that_drift_apart_meet_to_end_an_endless_script(profile):
    done = profile(DRIFTING, *WINDOWS, "--nproc-per-node", "2")
    assert done.status == 0, done.err
    assert "the script was stopped" in done.err
    assert [done.facts(rank).ended for rank in (0, 1)] == ["complete"] * 2
