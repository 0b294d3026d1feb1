"""Accumulated gradients and bfloat16 autocast by hand, DDP; only the last backward pass is synchronised."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self, size, patch, dim, depth, classes):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.place = nn.Parameter(torch.randn(1, (size // patch) ** 2, dim) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.0, batch_first=True, norm_first=True) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def batches(batch, size, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(0, classes, (batch,), generator=generator)
        images = torch.randn(batch, 3, size, size, generator=generator) + labels.view(-1, 1, 1, 1) / classes
        yield images, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 8, 10))
    parser.add_argument("--accumulate", type=int, default=draw("accumulate", 2, 3))
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 128))
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Patches(48, 6, args.dim, args.depth, 10), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=True)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 200)
    source = batches(args.batch, 48, 10, rank)
    for step in range(1_000_000):
        total = torch.zeros(())
        for micro in range(args.accumulate):
            images, labels = next(source)
            last = micro == args.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(images), labels) / args.accumulate
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        warm.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step}: {total.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
