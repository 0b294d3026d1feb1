"""Epochs of three steps with workers that are forked anew for each. Alone, or started by torchrun."""

import argparse
import os

import ending
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

ddp = "RANK" in os.environ
world_size = int(os.environ.get("WORLD_SIZE", "1"))
if ddp:
    dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)

data = TensorDataset(torch.randn(48 * world_size, 16), torch.randint(0, 4, (48 * world_size,)))
sampler = DistributedSampler(data) if ddp else RandomSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
if ddp:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

step = 0
while step < args.steps:
    for features, labels in loader:
        step += 1
        ending.at(step)
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

if int(os.environ.get("RANK", "0")) == 0:
    weights.show(model.parameters())
if ddp:
    dist.barrier()
    dist.destroy_process_group()
