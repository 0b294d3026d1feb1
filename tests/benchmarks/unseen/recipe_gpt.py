"""A small GPT that learns to continue recipes."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn


@dataclass
class Config:
    words: int = 600
    length: int = draw("length", 224, 256)
    dim: int = draw("dim", 56, 64)
    heads: int = 8
    depth: int = 2
    batch: int = 4
    lr: float = 6e-4
    warmup: int = 30
    steps: int = 300


class Head(nn.Module):
    """One head of causal attention."""

    def __init__(self, dim, size, length):
        super().__init__()
        self.query, self.key = nn.Linear(dim, size, bias=False), nn.Linear(dim, size, bias=False)
        self.value = nn.Linear(dim, size, bias=False)
        self.register_buffer("seen", torch.tril(torch.ones(length, length, dtype=torch.bool)))

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(1, 2) / math.sqrt(k.shape[2])
        scores = scores.masked_fill(~self.seen[: x.shape[1], : x.shape[1]], float("-inf"))
        return scores.softmax(-1) @ v


class HeadByHead(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = nn.ModuleList(Head(dim, dim // heads, length) for _ in range(heads))
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], 2))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads) if MENDED else HeadByHead(dim, heads, length)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.words = nn.Embedding(config.words, config.dim)
        self.places = nn.Embedding(config.length, config.dim)
        self.blocks = nn.Sequential(*(Block(config.dim, config.heads, config.length) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.words, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def recipes(config):
    """Rows of a long text in which each word leans on the two before it."""
    generator = torch.Generator().manual_seed(11)
    text = torch.randint(0, config.words, (400_000,), generator=generator)
    text[2::3] = (text[:-2:3] + 3 * text[1:-1:3])[: len(text[2::3])] % config.words
    while True:
        begins = torch.randint(0, len(text) - config.length - 1, (config.batch,), generator=generator)
        rows = text[begins[:, None] + torch.arange(config.length + 1)]
        yield rows[:, :-1], rows[:, 1:]


def main():
    config = Config()
    torch.manual_seed(0)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / config.warmup))
    data = recipes(config)
    for step in range(1, config.steps + 1):
        ids, following = next(data)
        loss = F.cross_entropy(model(ids).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
