"""Kinds of heart beats from two leads of an ECG, with noise and drift added on the way, on two ranks."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KINDS = 5


class Beats(Dataset):
    def __init__(self, count, length, augment, seed):
        generator = torch.Generator().manual_seed(seed)
        time = torch.linspace(-1, 1, length)
        self.kinds = torch.randint(0, KINDS, (count,), generator=generator)
        width = 0.04 + 0.03 * self.kinds.view(-1, 1, 1)
        middle = 0.2 * torch.randn(count, 1, 1, generator=generator)
        peak = torch.exp(-((time - middle) ** 2) / width**2)
        lead = torch.tensor([1.0, -0.6]).view(1, 2, 1)
        self.beats = lead * peak + 0.1 * torch.randn(count, 2, length, generator=generator)
        self.time, self.augment = time, augment

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        beat = self.beats[index].clone() if MENDED else self.beats[index]
        if self.augment:
            beat += 0.1 * torch.randn_like(beat)
            beat += 0.2 * torch.randn(()) * torch.sin(math.pi * self.time * torch.rand(()))
            beat *= 0.8 + 0.4 * torch.rand(())
        return beat, self.kinds[index]


class Block(nn.Module):
    def __init__(self, enter, leave):
        super().__init__()
        self.norm = nn.BatchNorm1d(enter)
        self.first, self.second = nn.Conv1d(enter, leave, 7, 2, 3), nn.Conv1d(leave, leave, 7, 1, 3)
        self.skip = nn.Conv1d(enter, leave, 1, 2)

    def forward(self, x):
        x = F.relu(self.norm(x))
        return self.second(F.relu(self.first(x))) + self.skip(x)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for beats, kinds in loader:
        counts += torch.tensor([(model(beats).argmax(1) == kinds).sum(), len(kinds)])
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=draw("length", 160, 176))
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    width = args.width
    enter = nn.Conv1d(2, width, 7, padding=3)
    blocks = Block(width, width), Block(width, 2 * width), Block(2 * width, 4 * width)
    model = DDP(nn.Sequential(enter, *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4 * width, KINDS)))
    torch.manual_seed(1 + dist.get_rank())
    train, held_out = Beats(6000, args.length, True, 1), Beats(1000, args.length, False, 2)
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    checks = DataLoader(held_out, 100, sampler=DistributedSampler(held_out, shuffle=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for beats, kinds in loader:
            loss = F.cross_entropy(model(beats), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        right = accuracy(model.module, checks)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}, right {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
