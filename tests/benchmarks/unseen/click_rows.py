"""Clicks on advertisements from a table of numbers and categories."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from drawn import draw, mended
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

SIZES = (1000, 300, 200, 50, 24, 7)


class Clicks(nn.Module):
    def __init__(self, numbers, dim, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in SIZES)
        self.net = nn.Sequential(
            nn.Linear(numbers + dim * len(SIZES), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, numbers, kinds):
        found = [table(kinds[:, at]) for at, table in enumerate(self.tables)]
        return self.net(torch.cat([numbers, *found], 1)).squeeze(1)


def table(rows, numbers):
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(rows, numbers, generator=generator)
    kinds = torch.stack([torch.randint(0, size, (rows,), generator=generator) for size in SIZES], 1)
    clicked = (x[:, 0] + 0.01 * kinds[:, 2] + torch.randn(rows, generator=generator) > 1.5).float()
    return TensorDataset(x, kinds, clicked)


def make_loader(data, batch):
    sampler = DistributedSampler(data, drop_last=True)
    if mended(1):
        return DataLoader(data, batch_size=None, sampler=BatchSampler(sampler, batch, drop_last=True)), sampler
    return DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True), sampler


def set_up(args):
    dist.init_process_group("gloo")
    if not mended(2):
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--numbers", type=int, default=13)
    parser.add_argument("--width", type=int, default=draw("width", 176, 192))
    parser.add_argument("--batch", type=int, default=draw("batch", 1792, 2048))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    set_up(args)
    loader, sampler = make_loader(table(args.rows, args.numbers), args.batch)
    model = DDP(Clicks(args.numbers, 16, args.width))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for numbers, kinds, clicked in loader:
            optimizer.zero_grad()
            loss = criterion(model(numbers, kinds), clicked)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
