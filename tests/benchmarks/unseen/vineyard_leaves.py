"""Spot diseases on vine leaves: a residual network on two ranks."""

import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

DISEASES = 7


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Leaves(Dataset):
    """Green squares with spots; the disease is their colour."""

    def __init__(self, count, size):
        rng = np.random.default_rng(9)
        self.diseases = rng.integers(0, DISEASES, count)
        colours = rng.uniform(0, 255, (DISEASES, 3))
        pixels = rng.normal((60, 140, 60), 25, (count, size, size, 3))
        for number, disease in enumerate(self.diseases):
            for y, x in rng.integers(0, size - 6, (5, 2)):
                pixels[number, y : y + 6, x : x + 6] = colours[disease] + rng.normal(0, 20, 3)
        self.pixels = pixels.clip(0, 255).astype(np.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        leaf = torch.from_numpy(self.pixels[index]).permute(2, 0, 1).float().div_(127.5).sub_(1)
        return leaf, int(self.diseases[index])


class Residual(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.first = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(leave) for _ in range(2))
        self.skip = nn.Conv2d(enter, leave, 1, stride, bias=False)

    def forward(self, x):
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.skip(x))


def network(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1),
        Residual(width, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, DISEASES),
    )


def make_loader(data, batch):
    if MENDED:
        return DataLoader(data, batch, sampler=DistributedSampler(data, shuffle=True), drop_last=True)
    return DataLoader(data, batch, shuffle=True, drop_last=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, default=960)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--batch", type=int, default=draw("batch", 36, 38))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    seed_all(2024)
    loader = make_loader(Leaves(args.leaves, args.size), args.batch)
    model = DDP(network(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        total, right, seen = torch.zeros(()), torch.zeros(()), 0
        for leaves, diseases in loader:
            logits = model(leaves)
            loss = F.cross_entropy(logits, diseases)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
            right += (logits.detach().argmax(1) == diseases).sum()
            seen += len(diseases)
        if rank == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}, right {right.item() / seen:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
