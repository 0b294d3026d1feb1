"""Towers of toy blocks: a pretrained trunk with frozen normalisation, layers left out by chance, DDP."""

import argparse
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

HEIGHTS = 8


class Towers(Dataset):
    def __init__(self, count, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.height = torch.randint(HEIGHTS, (count,), generator=g)
        self.image = 0.4 * torch.randn(count, 3, size, size, generator=g)
        block = size // HEIGHTS
        left = torch.randint(size - block, (count, HEIGHTS), generator=g)
        colour = torch.rand(count, HEIGHTS, 3, 1, 1, generator=g) * 2
        for i, height in enumerate(self.height.tolist()):
            for level in range(height + 1):
                x, y = left[i, level], size - (level + 1) * block
                self.image[i, :, y : y + block, x : x + block] += colour[i, level]

    def __len__(self):
        return len(self.height)

    def __getitem__(self, i):
        image = self.image[i]
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), self.height[i]


class Trunk(nn.Module):
    """Its normalisation stays as it was in pretraining."""

    def __init__(self, width):
        super().__init__()
        sizes = [3, width, 2 * width]
        self.layers = nn.ModuleList()
        for cin, cout in pairwise(sizes):
            self.layers += [nn.Conv2d(cin, cout, 3, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()]
        for norm in self.norms():
            norm.requires_grad_(False)

    def norms(self):
        return [layer for layer in self.layers if isinstance(layer, nn.BatchNorm2d)]

    def train(self, mode=True):
        super().train(mode)
        for norm in self.norms():
            norm.eval()
        return self

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, dim), nn.Conv2d(dim, dim, 3, padding=1), nn.ReLU(), nn.Conv2d(dim, dim, 3, padding=1)
        )

    def forward(self, x):
        return x + self.body(x)


class TowerNet(nn.Module):
    def __init__(self, width, depth, left_out):
        super().__init__()
        self.trunk = Trunk(width)
        self.blocks = nn.ModuleList(Residual(2 * width) for _ in range(depth))
        self.left_out = left_out
        self.head = nn.Linear(2 * width, HEIGHTS)

    def forward(self, x):
        x = self.trunk(x)
        for block in self.blocks:
            if not self.training or torch.rand(()) >= self.left_out:
                x = block(x)
        return self.head(x.mean((2, 3)))


@torch.no_grad()
def held_out(model, loader):
    model.eval()
    seen = torch.zeros(2)
    for image, height in loader:
        seen += torch.tensor([float((model(image).argmax(1) == height).sum()), float(len(height))])
    model.train()
    dist.all_reduce(seen)
    return (seen[0] / seen[1]).item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--width", type=int, default=draw("width", 24, 28))
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--left-out", type=float, default=0.25)
    p.add_argument("--batch", type=int, default=draw("batch", 40, 44))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(27)
    data = Towers(30 * args.batch * world, args.size, seed=1)
    test = torch.utils.data.Subset(Towers(200, args.size, seed=2), range(rank, 200, world))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    # which layers take part is drawn on each rank for itself: some get no gradient
    model = DDP(TowerNet(args.width, args.depth, args.left_out), find_unused_parameters=True)
    learned = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=2e-3, weight_decay=0.01)
    torch.manual_seed(1000 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for image, height in loader:
            loss = F.cross_entropy(model(image), height)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        right = held_out(model.module, DataLoader(test, 50))
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader):.4f} right {right:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
