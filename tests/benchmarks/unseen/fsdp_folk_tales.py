"""Folk tales told on word by word: a language model with rotated places, fully_shard, accumulated gradients."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.distributed.fsdp import fully_shard


def tales(length, words, seed):
    """Words that follow a word by a table; now and then a phrase that was told before comes again."""
    g = torch.Generator().manual_seed(seed)
    after = torch.randint(words, (words, 4), generator=torch.Generator().manual_seed(76)).tolist()
    pick = torch.multinomial(torch.tensor([0.6, 0.2, 0.1, 0.1]), length, replacement=True, generator=g).tolist()
    back = torch.randint(20, 50, (length,), generator=g).tolist()
    again = (torch.rand(length, generator=g) < 0.04).tolist()
    row = [1]
    while len(row) < length:
        at = len(row)
        if again[at] and at > 50:
            row += row[at - back[at] : at - back[at] + 8]
        else:
            row.append(after[row[-1]][pick[at]])
    return torch.tensor(row[:length])


def turned(x, cos, sin):
    """Rotates pairs of channels by the place of a word."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 6 * dim, bias=False), nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.up(self.norm2(x)).chunk(2, 2)
        return x + self.down(F.silu(gate) * up)


class TaleModel(nn.Module):
    def __init__(self, words, block, dim, depth, heads=4):
        super().__init__()
        self.word = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, words, bias=False)
        speed = 1000 ** (-torch.arange(dim // heads // 2) / (dim // heads // 2))
        angle = torch.arange(block).unsqueeze(1) * speed
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, text):
        x = self.word(text)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class Reader:
    """Places in the text at random, with a generator for each rank."""

    def __init__(self, text, block, seed):
        self.text, self.span = text, torch.arange(block + 1)
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, count):
        at = torch.randint(len(self.text) - len(self.span) + 1, (count, 1), generator=self.g)
        rows = self.text[at + self.span]
        return rows[:, :-1], rows[:, 1:]


def loss_of(model, text, after):
    return F.cross_entropy(model(text).flatten(0, 1), after.flatten())


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=400)
    p.add_argument("--block", type=int, default=64)
    p.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--micro", type=int, default=draw("micro", 14, 16))
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--steps", type=int, default=80)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(76)
    model = TaleModel(args.words, args.block, args.dim, args.depth)
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 10, 0.55 + 0.45 * math.cos(math.pi * step / args.steps))
    )
    reader = Reader(tales(80_000, args.words, seed=1), args.block, seed=100 + rank)
    held = Reader(tales(8_000, args.words, seed=2), args.block, seed=200 + rank)
    for step in range(args.steps):
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            loss = loss_of(model, *reader.batch(args.micro)) / args.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 40 == 39:
            model.eval()
            with torch.no_grad():
                mean = loss_of(model, *held.batch(2 * args.micro))
            model.train()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1} loss {loss.item() * args.accumulate:.4f} held out {mean.item() / world:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
