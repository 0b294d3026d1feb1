"""Leaves of trees, told apart by a network whose layers are left out at random (stochastic depth), on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KINDS = 10


class Leaves(Dataset):
    def __init__(self, count, size, seed):
        generator = torch.Generator().manual_seed(seed)
        outlines = torch.randn(KINDS, 3, size, size, generator=torch.Generator().manual_seed(0))
        self.kinds = torch.randint(0, KINDS, (count,), generator=generator)
        self.pictures = outlines[self.kinds] + torch.randn(count, 3, size, size, generator=generator)

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        picture = self.pictures[index]
        return picture.flip(2) if torch.rand(()) < 0.5 else picture, self.kinds[index]


class Residual(nn.Module):
    def __init__(self, width, chance):
        super().__init__()
        self.chance = chance
        self.body = nn.Sequential(
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
        )

    def forward(self, x):
        if not self.training:
            return x + (1 - self.chance) * self.body(x)
        return x if torch.rand(()) < self.chance else x + self.body(x)


class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, 2, 1)
        self.layers = nn.Sequential(*(Residual(width, 0.4 * at / depth) for at in range(1, depth + 1)))
        self.leave = nn.Linear(width, KINDS)

    def forward(self, pictures):
        return self.leave(F.relu(self.layers(self.enter(pictures))).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=draw("size", 28, 32))
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Leaves(6000, args.size, 1)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Net(args.width, args.depth), find_unused_parameters=True)
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for pictures, kinds in loader:
            loss = F.cross_entropy(model(pictures), kinds)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
