"""What the recordings in this folder are of: units over gloo, ranks on the CPUs of one machine.

    dptune profile --nproc-per-node 2 --warmup 2 --untraced 4 --light 4 --detailed 0 train.py flat
    dptune profile --nproc-per-node 4 --warmup 2 --untraced 4 --light 4 --detailed 0 train.py hybrid

`flat`: FullyShardedDataParallel, whose second unit holds another; `hybrid`: fully_shard on a mesh of two by two. The
last rank comes 100 ms late to each step.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

WIDTH, LATE_S = 64, 0.1


class Block(nn.Module):
    """A layer, and inside of another unit a second one."""

    def __init__(self, width, inner=None):
        super().__init__()
        self.layer, self.inner = nn.Linear(WIDTH, width), inner
        self.back = nn.Linear(width, WIDTH)

    def forward(self, batch):
        hidden = self.back(torch.relu(self.layer(batch)))
        return hidden if self.inner is None else self.inner(hidden)


def flat():
    """The root has the head's parameters."""

    def unit(module):
        return FullyShardedDataParallel(module, device_id=torch.device("cpu"))

    return unit(
        nn.Sequential(unit(Block(32)), unit(Block(256, unit(Block(128)))), unit(Block(64)), nn.Linear(WIDTH, 4))
    )


def hybrid():
    """Two units and the root."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(Block(256), Block(128), nn.Linear(WIDTH, 4))
    for block in model[:2]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)

model = {"flat": flat, "hybrid": hybrid}[sys.argv[1]]()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())
for _ in range(200):
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(LATE_S)
    batch, labels = torch.randn(256, WIDTH), torch.randint(0, 4, (256,))
    nn.functional.cross_entropy(model(batch), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
