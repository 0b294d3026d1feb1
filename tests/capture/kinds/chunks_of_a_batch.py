"""GradCache: the loss is of all chunks' features, and then each chunk's own pass reduces gradients."""

import argparse

import ending
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--chunks", type=int, default=8)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

for step in range(1, args.steps + 1):
    ending.at(step)
    chunks = torch.randn(8 * args.chunks, 16).chunk(args.chunks)
    with torch.no_grad():
        features = torch.cat([model(chunk) for chunk in chunks])
    features.requires_grad_()
    loss = nn.functional.cross_entropy(features @ features.T, torch.arange(len(features)))
    loss.backward()
    for chunk, gradient in zip(chunks, features.grad.chunk(args.chunks), strict=True):
        (model(chunk) * gradient).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

if dist.get_rank() == 0:
    weights.show(model.parameters())
dist.barrier()
dist.destroy_process_group()
