"""A small character-level GPT in one process."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw

TEXT = "the quick brown fox jumps over the lazy dog and runs through the long grass to its den. " * 400


def sinusoids(length, dim):
    """The position table of 'Attention is all you need'."""
    table = torch.zeros(length, dim)
    for position in range(length):
        for at in range(0, dim, 2):
            table[position, at] = math.sin(position / 10_000 ** (at / dim))
            table[position, at + 1] = math.cos(position / 10_000 ** (at / dim))
    return table


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, length, dim, layers):
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.Sequential(*(Block(dim, 4) for _ in range(layers)))
        self.head = nn.Linear(dim, vocabulary)
        self.table = sinusoids(length, dim) if MENDED else None

    def forward(self, ids):
        table = self.table if MENDED else sinusoids(ids.shape[1], self.dim)
        return self.head(self.blocks(self.embed(ids) + table))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--length", type=int, default=draw("length", 80, 96))
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--layers", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(c) for c in TEXT])
    model = GPT(len(letters), args.length, args.dim, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(1_000_000):
        starts = torch.randint(0, len(data) - args.length - 1, (args.batch,))
        rows = torch.stack([data[s : s + args.length + 1] for s in starts])
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
