"""SimSiam on scans of old print proofs: two views, no negatives, stop-gradient; two ranks with DDP."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Proofs(Dataset):
    """Two views of each scan: cropped and scaled, ink and paper varied, at random on each visit."""

    def __init__(self, n, size, seed=37):
        g = torch.Generator().manual_seed(seed)
        glyphs = (torch.rand(24, 1, 8, 8, generator=g) < 0.4).float()
        self.kind = torch.randint(0, 24, (n,), generator=g)
        big = F.interpolate(glyphs, size=size + 16, mode="nearest")
        self.scans = (big[self.kind] + 0.15 * torch.randn(n, 1, size + 16, size + 16, generator=g)).clamp(0, 1)
        self.size = size

    def __len__(self):
        return len(self.kind)

    def view(self, scan):
        side = int(torch.randint(self.size - 8, self.size + 16, ()))
        top, left = (int(v) for v in torch.randint(0, self.size + 17 - side, (2,)))
        crop = scan[:, top : top + side, left : left + side].unsqueeze(0)
        view = F.interpolate(crop, size=self.size, mode="bilinear", antialias=False)[0]
        contrast, brightness = 0.6 + 0.8 * torch.rand(()), 0.4 * torch.rand(()) - 0.2
        return contrast * view + brightness + 0.05 * torch.randn(view.shape)

    def __getitem__(self, i):
        return self.view(self.scans[i]), self.view(self.scans[i])


class Encoder(nn.Module):
    def __init__(self, w, out):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, w, 3, 2, 1, bias=False),
            nn.BatchNorm2d(w),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, 1, 1, bias=False),
            nn.BatchNorm2d(2 * w),
            nn.ReLU(),
            nn.Conv2d(2 * w, 4 * w, 3, 2, 1, bias=False),
            nn.BatchNorm2d(4 * w),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(
            nn.Linear(16 * w, out, bias=False),
            nn.BatchNorm1d(out),
            nn.ReLU(),
            nn.Linear(out, out, bias=False),
            nn.BatchNorm1d(out, affine=False),
        )

    def forward(self, x):
        return self.projector(self.conv(x))


class SimSiam(nn.Module):
    def __init__(self, w, out):
        super().__init__()
        self.encoder = Encoder(w, out)
        self.predictor = nn.Sequential(
            nn.Linear(out, out // 4, bias=False), nn.BatchNorm1d(out // 4), nn.ReLU(), nn.Linear(out // 4, out)
        )

    def forward(self, one, two):
        z1, z2 = self.encoder(one), self.encoder(two)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return p1, p2, z1.detach(), z2.detach()


def negative_cosine(p, z):
    return -F.cosine_similarity(p, z, dim=1).mean()


def adjust_rate(optimizer, step, total, base):
    rate = base * 0.5 * (1 + math.cos(math.pi * step / total))
    for group in optimizer.param_groups:
        group["lr"] = base if group.get("fixed") else rate


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--width", type=int, default=draw("width", 14, 16))
    ap.add_argument("--out", type=int, default=128)
    ap.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Proofs(2 * 26 * args.batch, args.size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(SimSiam(args.width, args.out))
    groups = [
        {"params": model.module.encoder.parameters()},
        {"params": model.module.predictor.parameters(), "fixed": True},
    ]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    torch.manual_seed(1 + rank)
    total, step = args.epochs * len(loader), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen, spread = torch.zeros(()), torch.zeros(())
        for one, two in loader:
            adjust_rate(optimizer, step, total, args.lr)
            p1, p2, z1, z2 = model(one, two)
            loss = 0.5 * (negative_cosine(p1, z2) + negative_cosine(p2, z1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            seen += loss.detach()
            # about 1 / sqrt(out) as long as it has not collapsed
            spread += F.normalize(z1, dim=1).std(0).mean()
        if rank == 0:
            print(f"epoch {epoch}: loss {seen / len(loader):.4f}, spread {spread / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
