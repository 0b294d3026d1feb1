"""Cracks in bridges: where they are and how bad, one trunk and two heads, DDP with accumulation on two ranks."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Concrete(Dataset):
    def __init__(self, count, size, seed=61):
        g = torch.Generator().manual_seed(seed)
        y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        slope = torch.randn(count, 1, 1, generator=g)
        start = torch.randint(0, size, (count, 1, 1), generator=g)
        width = torch.randint(0, 4, (count,), generator=g)
        self.mask = ((y - start - slope * x).abs() < width.view(-1, 1, 1)).float()
        self.severity = width
        self.images = 0.6 * torch.randn(count, 1, size, size, generator=g) - self.mask.unsqueeze(1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.mask[i], self.severity[i]


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(), nn.Conv2d(cout, cout, 3, padding=1)
    )


class CrackNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.up = block(3 * width, width)
        self.where, self.severity = nn.Conv2d(width, 1, 1), nn.Linear(2 * width, 4)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        u = F.relu(self.up(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)))
        return self.where(u).squeeze(1), self.severity(b.mean((2, 3)))


def losses(out, mask, severity):
    where, bad = out
    return F.binary_cross_entropy_with_logits(where, mask) + 0.3 * F.cross_entropy(bad, severity)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--width", type=int, default=draw("width", 8, 12))
    p.add_argument("--batch", type=int, default=draw("batch", 8, 10))
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(CrackNet(args.width), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = Concrete(world * args.batch * args.accumulate * 45, args.size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        told = torch.zeros(3)
        for at, (image, mask, severity) in enumerate(loader):
            last = (at + 1) % args.accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                out = model(image)
                loss = losses(out, mask, severity)
                (loss / args.accumulate).backward()
            with torch.no_grad():
                found = out[0] > 0
                told[0] += loss
                told[1] += (found * mask).sum()
                told[2] += ((found + mask) > 0).sum()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        dist.all_reduce(told)
        if rank == 0:
            loss, both, either = told.tolist()
            print(f"epoch {epoch} loss {loss / world / len(loader):.4f} IoU {both / either:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
