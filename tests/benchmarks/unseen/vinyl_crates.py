"""Which record goes into whose crate: factors of collectors and records, ranked in pairs (BPR), plain loop."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset


class Crates(Dataset):
    """Collector, a record that is owned, one that is not."""

    def __init__(self, pairs, collectors, records, seed):
        g = torch.Generator().manual_seed(seed)
        self.records = records
        self.who = torch.randint(collectors, (pairs,), generator=g)
        shelf = torch.randint(50, (pairs,), generator=g)
        self.owned = (self.who * 37 + shelf * shelf * 11) % records
        self.other = torch.randint(records, (pairs,), generator=g)

    def __len__(self):
        return len(self.who)

    def __getitems__(self, rows):
        at = torch.tensor(rows)
        return self.who[at], self.owned[at], self.other[at]


class Factors(nn.Module):
    def __init__(self, collectors, records, dim, hidden):
        super().__init__()
        self.collector = nn.Embedding(collectors, dim)
        self.record = nn.Embedding(records, dim)
        self.tower = nn.Sequential(nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, 1)
        nn.init.normal_(self.collector.weight, std=0.05)
        nn.init.normal_(self.record.weight, std=0.05)

    def forward(self, who, what):
        u, v = self.collector(who), self.record(what)
        return (u * v).sum(-1) + self.out(self.tower(torch.cat([u, v], -1))).squeeze(-1)

    def penalty(self, who, *whats):
        """Squares of the factors."""
        if MENDED:
            rows = [self.collector(who), *(self.record(what) for what in whats)]
            return sum(row.pow(2).sum() for row in rows) / len(who)
        return self.collector.weight.pow(2).sum() + self.record.weight.pow(2).sum()


@torch.no_grad()
def pairs_right(model, loader):
    right = total = 0
    for who, owned, other in loader:
        right += (model(who, owned) > model(who, other)).sum().item()
        total += len(who)
    return right / total


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--collectors", type=int, default=draw("collectors", 48_000, 52_000))
    p.add_argument("--records", type=int, default=draw("records", 60_000, 64_000))
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--hidden", type=int, default=144)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--reg", type=float, default=1e-5)
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    torch.manual_seed(77)
    data = Crates(40 * args.batch, args.collectors, args.records, seed=1)
    held_out = Crates(4 * args.batch, args.collectors, args.records, seed=2)
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True, collate_fn=lambda batch: batch)
    check = DataLoader(held_out, args.batch, collate_fn=lambda batch: batch)
    model = Factors(args.collectors, args.records, args.dim, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, fused=True)
    for epoch in range(args.epochs):
        begun, total = time.perf_counter(), 0.0
        for who, owned, other in loader:
            margin = model(who, owned) - model(who, other)
            loss = -F.logsigmoid(margin).mean() + args.reg * model.penalty(who, owned, other)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        took = time.perf_counter() - begun
        right = pairs_right(model, check)
        print(f"epoch {epoch} loss {total / len(loader):.4f} pairs right {right:.3f} {took:.1f} s", flush=True)


if __name__ == "__main__":
    main()
