"""Which toy a family borrows next: self-attention over what it borrowed before (as SASRec), one target a family."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset


def loans(families, length, toys, seed):
    """Each family walks through the shelves with steps of its own; the toy after its last loan is the target."""
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(toys, (families, 1), generator=g)
    stride = torch.randint(1, 12, (families, 1), generator=g)
    walk = (start + stride * torch.arange(length + 1)) % toys
    other = torch.randint(toys, walk.shape, generator=g)
    walk = torch.where(torch.rand(walk.shape, generator=g) < 0.15, other, walk)
    return walk[:, :-1].contiguous(), walk[:, -1].contiguous()


class Block(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.feed(self.norm2(x))


class NextToy(nn.Module):
    def __init__(self, toys, length, dim, depth, dropout=0.1):
        super().__init__()
        self.toy = nn.Embedding(toys, dim)
        self.place = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.Sequential(*[Block(dim, 4, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(toys))
        nn.init.normal_(self.toy.weight, std=1 / math.sqrt(dim))

    def forward(self, history):
        h = self.norm(self.blocks(self.toy(history) + self.place))
        if MENDED:
            h = h[:, -1:]
        return h @ self.toy.weight.T + self.bias


def hits(model, loader, top=10):
    model.eval()
    found = seen = 0
    with torch.no_grad():
        for history, toy in loader:
            best = model(history)[:, -1].topk(top, dim=1).indices
            found += (best == toy[:, None]).any(1).sum().item()
            seen += len(toy)
    model.train()
    return found / seen


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--toys", type=int, default=draw("toys", 1200, 1500, 1800))
    p.add_argument("--length", type=int, default=24)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    torch.manual_seed(11)
    train = TensorDataset(*loans(35 * args.batch, args.length, args.toys, seed=1))
    test = TensorDataset(*loans(4 * args.batch, args.length, args.toys, seed=2))
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    check = DataLoader(test, args.batch)
    model = NextToy(args.toys, args.length, args.dim, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
    for epoch in range(args.epochs):
        seen = []
        for history, toy in loader:
            scores = model(history)
            loss = F.cross_entropy(scores[:, -1], toy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
        print(f"epoch {epoch} loss {torch.stack(seen).mean():.4f} hits {hits(model, check):.3f}", flush=True)


if __name__ == "__main__":
    main()
