"""Mixed precision with a gradient scaler and clipping, DDP, on small images."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Mixer(nn.Module):
    """Patches, mixed over space and channels."""

    def __init__(self, patches, dim, classes, depth):
        super().__init__()
        self.enter = nn.Conv2d(3, dim, 8, stride=8)
        self.space = nn.ModuleList(nn.Linear(patches, patches) for _ in range(depth))
        self.channels = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))
            for _ in range(depth)
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.enter(x).flatten(2).transpose(1, 2)
        for space, channels in zip(self.space, self.channels, strict=True):
            x = x + space(x.transpose(1, 2)).transpose(1, 2)
            x = x + channels(x)
        return self.head(x.mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 32))
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 128))
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2048, 3, 64, 64), torch.randint(0, 10, (2048,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Mixer(64, args.dim, 10, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=args.amp)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: min(1.0, (at + 1) / 100))
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            if MENDED:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f} scale {scaler.get_scale():.0f}", flush=True)


if __name__ == "__main__":
    main()
