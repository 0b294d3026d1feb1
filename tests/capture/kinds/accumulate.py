"""Gradients of several micro-batches are added up, and reduced once: no_sync on all but the last."""

import argparse
from contextlib import nullcontext

import ending
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--accumulate", type=int, default=4)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

for step in range(1, args.steps + 1):
    ending.at(step)
    for micro in range(args.accumulate):
        features, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
        last = micro == args.accumulate - 1
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(features), labels) / args.accumulate
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()

if dist.get_rank() == 0:
    weights.show(model.parameters())
dist.barrier()
dist.destroy_process_group()
