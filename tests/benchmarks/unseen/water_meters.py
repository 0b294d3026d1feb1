"""Water that houses will use in the next day, from the weeks before: encoder of attention under DDP."""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def readings(hours, meters, seed):
    """Litres by hour and meter: days, weeks and some chance."""
    rng = np.random.default_rng(seed)
    t = np.arange(hours)[:, None]
    morning, weekend = rng.uniform(0, 24, meters), rng.uniform(0.2, 1.0, meters)
    day = np.exp(-(((t - morning) % 24 - 12) ** 2) / 20)
    week = 1 + weekend * ((t // 24) % 7 >= 5)
    return day * week + rng.gamma(1.0, 0.1, (hours, meters))


class Windows(Dataset):
    def __init__(self, series, past, ahead):
        self.past, self.ahead = past, ahead
        self.series = torch.tensor(series, dtype=torch.float32) if MENDED else series

    def __len__(self):
        return len(self.series) - self.past - self.ahead + 1

    def __getitem__(self, start):
        series = self.series if MENDED else torch.tensor(self.series, dtype=torch.float32)
        end = start + self.past
        return series[start:end], series[end : end + self.ahead]


class Forecaster(nn.Module):
    def __init__(self, meters, patch, past, ahead, dim, depth):
        super().__init__()
        self.patch, self.ahead = patch, ahead
        self.embed = nn.Linear(patch * meters, dim)
        self.place = nn.Parameter(torch.zeros(1, past // patch, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, ahead * meters)

    def forward(self, past):
        mean, std = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-3
        x = ((past - mean) / std).unflatten(1, (-1, self.patch)).flatten(2)
        h = self.encoder(self.embed(x) + self.place).mean(1)
        return self.out(h).unflatten(1, (self.ahead, -1)) * std + mean


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--hours", type=int, default=draw("hours", 40_000, 44_000))
    p.add_argument("--meters", type=int, default=20)
    p.add_argument("--past", type=int, default=336)
    p.add_argument("--ahead", type=int, default=24)
    p.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--steps", type=int, default=90)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    series = readings(args.hours, args.meters, seed=15)
    cut = args.hours * 9 // 10
    train = Windows(series[:cut], args.past, args.ahead)
    test = Windows(series[cut:], args.past, args.ahead)
    sampler = DistributedSampler(train, seed=5, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Forecaster(args.meters, 12, args.past, args.ahead, args.dim, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=args.steps)
    sampler.set_epoch(0)
    torch.manual_seed(100 + rank)
    for step, (past, ahead) in enumerate(loader, 1):
        loss = nn.functional.l1_loss(model(past), ahead)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step} error {loss.item():.4f}", flush=True)
        if step == args.steps:
            break
    model.eval()
    with torch.no_grad():
        some = [test[i] for i in range(rank, len(test), len(test) // 40)]
        past, ahead = (torch.stack(part) for part in zip(*some, strict=True))
        error = nn.functional.l1_loss(model.module(past), ahead)
    dist.all_reduce(error)
    if rank == 0:
        print(f"held out {error.item() / dist.get_world_size():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
