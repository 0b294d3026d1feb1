"""Changes of fully_shard that only a patch makes, verified: real trials of two ranks over gloo, to a verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .. import in_process  # noqa: TID252 - tests are no installed package
from .test_engine import AMOUNT, as_recorded_in, run, surroundings

pytestmark = [pytest.mark.records, pytest.mark.thorough]

# Each of 32 layers is a unit, so a step waits for 95 collectives or more; a block pauses, also where it is recomputed.
TRAIN = """\
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        time.sleep(0.004)
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(16))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
for module in model.modules():
    if isinstance(module, nn.Linear):
        fully_shard(module)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(200):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
PROFILE = ("--warmup", "2", "--untraced", "6", "--light", "3", "--detailed", "0", "--no-links", "-q")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="trials need torch")
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(TRAIN)
    words = ("profile", "--run-dir", "base", *PROFILE, "--nproc-per-node", "2", "train.py")
    done = in_process.recording(*words, cwd=folder, env=surroundings())
    assert done.returncode == 0, done.stderr
    return folder


def on_two_hosts(folder: Path) -> None:
    """Rank 1 as if it had run on another host."""
    path = folder / "base" / "rank-00001.facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "another"}))


@pytest.mark.parametrize(
    ("setting", "line", "outcome"),
    [
        ("wrapper=ddp", "model = DistributedDataParallel(model)", "better"),
        ("fsdp.blocks_per_unit=4", "fully_shard(", "better"),
        ("fsdp.within_hosts=true", 'init_device_mesh("cpu", (2, 1)', None),
        ("memory.checkpointing=true", "checkpoint_wrapper", "worse"),
    ],
)
def test_a_patch_is_verified_to_a_verdict(
    setting: str, line: str, outcome: str | None, recorded: Path, tmp_path: Path
) -> None:
    """DDP and larger units leave out most collectives; recomputing a block pauses for it again.

    A mesh of two hosts with one rank each replaces each reduction by one between hosts: the faster side is not known.
    """
    project = as_recorded_in(tmp_path / "project", recorded)
    if setting.startswith("fsdp.within_hosts"):
        on_two_hosts(project)
    done = run("verify", "base", "--yes", "--set", setting, *AMOUNT, "--format", "json", cwd=project)
    assert done.returncode == 0, done.stderr
    proof: dict[str, Any] = json.loads(done.stdout)
    assert {trial["status"] for trial in proof["trials"]} == {"ran"}
    assert proof["learning"]["outcome"] == "alike"
    assert proof["outcome"] == (outcome or proof["outcome"]), proof["ended"]
    assert {trial["side"] for trial in proof["trials"]} == {"A", "B"}
    patch = run("report", "base", "--patch", "--set", setting, cwd=project).stdout
    assert any(line in added for added in patch.splitlines() if added.startswith("+"))
    assert (project / "train.py").read_text() == TRAIN
    shutil.rmtree(project)
