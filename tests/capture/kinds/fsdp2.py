"""fully_shard on each block, then on the whole model. Started by torchrun."""

import argparse

import ending
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
blocks = [nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU()) for _ in range(4)]
model = nn.Sequential(*blocks, nn.Linear(32, 4))
for block in blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

torch.manual_seed(dist.get_rank())
for step in range(1, args.steps + 1):
    ending.at(step)
    features, labels = torch.randn(16, 32), torch.randint(0, 4, (16,))
    loss = nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

whole = [parameter.full_tensor() for parameter in model.parameters()]
if dist.get_rank() == 0:
    weights.show(whole)
dist.barrier()
dist.destroy_process_group()
