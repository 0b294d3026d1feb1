"""Learn to write libretti letter by letter: a causal transformer on two ranks, with accumulated gradients."""

import argparse
import contextlib
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP


def compose(length, signs):
    """A chain in which each sign leads to a few others."""
    generator = torch.Generator().manual_seed(33)
    follow = torch.randint(0, signs, (signs, 4), generator=generator)
    choice = torch.randint(0, 4, (length,), generator=generator).tolist()
    table, at, text = follow.tolist(), 0, []
    for pick in choice:
        at = table[at][pick]
        text.append(at)
    return torch.tensor(text)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.inner = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, d))
        return x + self.inner(self.norms[1](x))


class Librettist(nn.Module):
    def __init__(self, signs, dim, layers, length):
        super().__init__()
        self.signs = nn.Embedding(signs, dim)
        self.places = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, signs, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.signs(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def rate(step, args):
    if step < args.warmup:
        return (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signs", type=int, default=96)
    parser.add_argument("--dim", type=int, default=draw("dim", 256, 272))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=draw("accumulate", 4, 5))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    text = compose(200_000, args.signs)
    torch.manual_seed(0)
    model = DDP(Librettist(args.signs, args.dim, args.layers, args.length), gradient_as_bucket_view=True)
    torch.manual_seed(10 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, args))
    for step in range(1, args.steps + 1):
        total = 0.0
        for micro in range(args.accumulate):
            at = torch.randint(0, len(text) - args.length - 1, (args.micro, 1))
            rows = text[at + torch.arange(args.length + 1)]
            waits = MENDED and micro < args.accumulate - 1
            with model.no_sync() if waits else contextlib.nullcontext():
                logits = model(rows[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) / args.accumulate
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {total:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
