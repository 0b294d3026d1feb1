"""Where a pebble was picked up, from its photograph: depthwise convolutions, DistributedDataParallel, mixed photos."""

import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BEACHES = ["cove", "spit", "estuary", "bar", "cliff foot", "harbour", "lagoon"]


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Pebbles(Dataset):
    """Round stones with bands; hue and banding depend on the beach. Kept as bytes."""

    def __init__(self, count, size, train, seed):
        g = torch.Generator().manual_seed(seed)
        hue = torch.rand(len(BEACHES), 3, 1, 1, generator=torch.Generator().manual_seed(2))
        self.beach = torch.randint(len(BEACHES), (count,), generator=g)
        y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
        squeeze = 0.6 + 0.6 * torch.rand(count, 1, 1, generator=g)
        inside = (x**2 * squeeze + y**2 / squeeze < 0.7).unsqueeze(1)
        turn = 3.14 * torch.rand(count, 1, 1, generator=g)
        band = torch.cos((6 + 2 * self.beach.view(-1, 1, 1)) * (x * turn.cos() + y * turn.sin())).unsqueeze(1)
        stone = hue[self.beach] + 0.2 * band + 0.15 * torch.randn(count, 3, size, size, generator=g)
        sand = 0.75 + 0.1 * torch.randn(count, 3, size, size, generator=g)
        self.photo = (255 * torch.where(inside, stone, sand).clamp(0, 1)).byte()
        self.train = train

    def __len__(self):
        return len(self.beach)

    def __getitem__(self, i):
        photo = self.photo[i]
        if self.train and random.random() < 0.5:
            photo = photo.flip(2)
        return photo, self.beach[i]


class Mixed(nn.Module):
    """Depthwise filters of two sizes between pointwise convolutions."""

    def __init__(self, n_in, n_out, stride, grow=3):
        super().__init__()
        half = n_in * grow // 2
        self.first = nn.Sequential(nn.Conv2d(n_in, 2 * half, 1, bias=False), nn.BatchNorm2d(2 * half), nn.SiLU())
        self.small = nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False)
        self.large = nn.Conv2d(half, half, 5, stride, 2, groups=half, bias=False)
        self.last = nn.Sequential(
            nn.BatchNorm2d(2 * half), nn.SiLU(), nn.Conv2d(2 * half, n_out, 1, bias=False), nn.BatchNorm2d(n_out)
        )
        self.same = stride == 1 and n_in == n_out

    def forward(self, x):
        a, b = self.first(x).chunk(2, 1)
        y = self.last(torch.cat([self.small(a), self.large(b)], 1))
        return x + y if self.same else y


def network(width):
    rows = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU()]
    for n_in, n_out, stride in ((1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)):
        rows.append(Mixed(width * n_in, width * n_out, stride))
    return nn.Sequential(*rows, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, len(BEACHES)))


def mixed(photo, beach, strength=0.2):
    """Pairs of photographs laid over each other, with the two beaches and the share of the first."""
    share = np.random.beta(strength, strength)
    other = torch.randperm(len(photo))
    return share * photo + (1 - share) * photo[other], beach, beach[other], share


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    set_seed(100 + rank)  # mixtures and flips are to differ between the ranks
    train, test = Pebbles(40 * world * args.batch, args.size, True, seed=1), Pebbles(140, args.size, False, seed=2)
    sampler = DistributedSampler(train, seed=9, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(network(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for photo, beach in loader:
            photo, first, second, share = mixed(photo.float() / 127.5 - 1, beach)
            scores = model(photo)
            loss = share * F.cross_entropy(scores, first) + (1 - share) * F.cross_entropy(scores, second)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            photo, beach = test.photo[rank::world].float() / 127.5 - 1, test.beach[rank::world]
            right = (model.module(photo).argmax(1) == beach).sum()
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} right {right.item() / len(test):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
