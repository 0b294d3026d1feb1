"""Estimate how long parcels travel: a sharded network (fully_shard) with accumulated gradients, on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Step(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.wide = nn.Linear(dim, 3 * dim)
        self.back = nn.Linear(3 * dim, dim)

    def forward(self, x):
        return x + self.back(F.gelu(self.wide(self.norm(x))))


class Travel(nn.Module):
    """Depots, weights and hours; three chances of a distribution come out."""

    def __init__(self, depots, dim, depth):
        super().__init__()
        self.depots = nn.Embedding(depots, dim)
        self.numbers = nn.Linear(8, dim)
        self.steps = nn.ModuleList(Step(dim) for _ in range(depth))
        self.leave = nn.Linear(dim, 3)

    def forward(self, route, numbers):
        x = self.depots(route).sum(1) + self.numbers(numbers)
        for step in self.steps:
            x = step(x)
        return self.leave(x)


def parcels(count, depots, generator):
    route = torch.randint(0, depots, (count, 3), generator=generator)
    numbers = torch.randn(count, 8, generator=generator)
    hours = (route[:, 0] - route[:, 2]).abs().float() / depots + numbers[:, 0].abs()
    return route, numbers, hours


def quantile_loss(guess, hours, levels):
    error = hours.unsqueeze(1) - guess
    return torch.maximum(levels * error, (levels - 1) * error).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depots", type=int, default=400)
    parser.add_argument("--dim", type=int, default=draw("dim", 224, 240))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--micro", type=int, default=draw("micro", 320, 352))
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Travel(args.depots, args.dim, args.depth)
    for step in model.steps:
        fully_shard(step, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    levels = torch.tensor([0.1, 0.5, 0.9])
    generator = torch.Generator().manual_seed(40 + rank)
    for step in range(1, args.steps + 1):
        for micro in range(args.accumulate):
            model.set_requires_gradient_sync(micro == args.accumulate - 1)
            route, numbers, hours = parcels(args.micro, args.depots, generator)
            loss = quantile_loss(model(route, numbers), hours, levels) / args.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 25 == 0 and rank == 0:
            print(f"step {step}: {args.accumulate * loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
