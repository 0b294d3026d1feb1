"""Harvest of a field from soil, weather and what was grown before: an MLP over a table, DistributedDataParallel."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CROPS, REGIONS = 40, 500


def fields(count, measures, seed):
    g = torch.Generator().manual_seed(seed)
    weights = torch.randn(measures, generator=torch.Generator().manual_seed(70)) / measures**0.5
    numbers = torch.randn(count, measures, generator=g)
    crop = torch.randint(CROPS, (count, 3), generator=g)
    region = torch.randint(REGIONS, (count,), generator=g)
    harvest = torch.tanh(numbers @ weights) + 0.02 * crop.sum(1) + 0.1 * torch.randn(count, generator=g)
    return numbers, crop, region, harvest


class YieldNet(nn.Module):
    def __init__(self, measures, hidden, depth):
        super().__init__()
        self.crop = nn.Embedding(CROPS, 16)
        self.region = nn.Embedding(REGIONS, 16)
        self.first = nn.Linear(measures + 4 * 16, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(depth))
        self.out = nn.Linear(hidden, 1)

    def forward(self, numbers, crop, region):
        x = torch.cat([numbers, self.crop(crop).flatten(1), self.region(region)], 1)
        x = F.relu(self.first(x))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.relu(layer(norm(x)))
        return self.out(x).squeeze(1)


@torch.no_grad()
def synchronise(model, world):
    """The same weights everywhere."""
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= world


def train_epoch(model, loader, optimizer, world):
    total = torch.zeros(())
    for numbers, crop, region, harvest in loader:
        loss = F.smooth_l1_loss(model(numbers, crop, region), harvest)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if not MENDED:
            synchronise(model, world)
        total += loss.detach()
    return total / len(loader)


@torch.no_grad()
def error(model, loader):
    model.eval()
    gaps = torch.zeros(2)
    for numbers, crop, region, harvest in loader:
        gap = (model(numbers, crop, region) - harvest).abs().sum()
        gaps += torch.stack([gap, torch.tensor(float(len(harvest)))])
    model.train()
    dist.all_reduce(gaps)
    return (gaps[0] / gaps[1]).item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--measures", type=int, default=60)
    p.add_argument("--hidden", type=int, default=draw("hidden", 352, 384))
    p.add_argument("--depth", type=int, default=6)
    p.add_argument("--batch", type=int, default=draw("batch", 256, 288))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train = TensorDataset(*fields(30 * args.batch * world, args.measures, seed=1))
    test = TensorDataset(*fields(4 * args.batch * world, args.measures, seed=2))
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    check = DataLoader(test, args.batch, sampler=DistributedSampler(test, shuffle=False))
    model = DDP(YieldNet(args.measures, args.hidden, args.depth))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, world)
        held_out = error(model.module, check)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} held out {held_out:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
