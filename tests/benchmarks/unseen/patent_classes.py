"""Classify patents by their abstracts: a transformer on two ranks, with gradients of several batches to a step."""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORDS, CLASSES = 2500, 16


class Reader(nn.Module):
    def __init__(self, dim, depth, length):
        super().__init__()
        self.words = nn.Embedding(WORDS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.1, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, CLASSES))

    def forward(self, ids):
        return self.head(self.layers(self.words(ids) + self.places).mean(1))


def abstracts(count, length):
    generator = torch.Generator().manual_seed(12)
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    ids = torch.randint(40, WORDS, (count, length), generator=generator)
    telling = torch.rand(count, length, generator=generator) < 0.12
    return TensorDataset(torch.where(telling, 2 * classes[:, None], ids), classes)


def train_epoch(model, loader, optimizer, schedule, args):
    total = torch.zeros(())
    for number, (ids, classes) in enumerate(loader):
        last = (number + 1) % args.accumulate == 0
        if not MENDED or number % args.accumulate == 0:
            optimizer.zero_grad()
        with nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(ids), classes, label_smoothing=0.05)
            (loss / args.accumulate).backward()
        total += loss.detach()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            schedule.step()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--dim", type=int, default=draw("dim", 64, 80))
    parser.add_argument("--batch", type=int, default=draw("batch", 7, 8))
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = abstracts(6000, args.length)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Reader(args.dim, 2, args.length))
    torch.manual_seed(10 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.02, fused=True)
    steps = args.epochs * (len(loader) // args.accumulate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps, pct_start=0.1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, schedule, args)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
