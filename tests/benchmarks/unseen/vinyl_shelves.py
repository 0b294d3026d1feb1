"""Records that collectors look for: two towers over collectors and records, trained on what they bought."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

GENRES, COUNTRIES, DECADES = 60, 90, 9


def purchases(count, collectors, records, seed):
    """Collector and record; a collector keeps to some part of the shelves."""
    g = torch.Generator().manual_seed(seed)
    who = torch.randint(collectors, (count,), generator=g)
    near = (who * 7919 + torch.randint(400, (count,), generator=g)) % records
    return who, near


class Shelves(nn.Module):
    """What is known of each record without asking anyone."""

    def __init__(self, records, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.register_buffer("genre", torch.randint(GENRES, (records,), generator=g), persistent=False)
        self.register_buffer("country", torch.randint(COUNTRIES, (records,), generator=g), persistent=False)
        self.register_buffer("decade", torch.randint(DECADES, (records,), generator=g), persistent=False)


class Towers(nn.Module):
    def __init__(self, collectors, records, dim, hidden):
        super().__init__()
        self.shelves = Shelves(records, seed=3)
        self.collector = nn.Embedding(collectors, dim, sparse=MENDED)
        self.record = nn.Embedding(records, dim, sparse=MENDED)
        self.genre, self.country = nn.Embedding(GENRES, 16), nn.Embedding(COUNTRIES, 16)
        self.decade = nn.Embedding(DECADES, 16)
        self.left = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, 64))
        self.right = nn.Sequential(
            nn.Linear(dim + 48, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 64)
        )
        for table in (self.collector, self.record):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, who, record):
        s = self.shelves
        known = [self.genre(s.genre[record]), self.country(s.country[record]), self.decade(s.decade[record])]
        left = F.normalize(self.left(self.collector(who)), dim=1)
        right = F.normalize(self.right(torch.cat([self.record(record), *known], 1)), dim=1)
        return left @ right.T / 0.07


def make_optimizers(model, lr):
    tables = [model.collector.weight, model.record.weight]
    rest = [p for p in model.parameters() if all(p is not t for t in tables)]
    if MENDED:
        return [torch.optim.SparseAdam(tables, lr=lr), torch.optim.Adam(rest, lr=lr, fused=True)]
    return [torch.optim.Adam(tables, lr=lr, fused=True), torch.optim.Adam(rest, lr=lr, fused=True)]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--collectors", type=int, default=draw("collectors", 60_000, 80_000, 100_000))
    p.add_argument("--records", type=int, default=draw("records", 30_000, 40_000))
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--hidden", type=int, default=512)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    torch.manual_seed(6)
    data = TensorDataset(*purchases(50 * args.batch, args.collectors, args.records, seed=1))
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    model = Towers(args.collectors, args.records, args.dim, args.hidden)
    optimizers = make_optimizers(model, lr=3e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for who, record in loader:
            scores = model(who, record)
            same = record[:, None] == record[None, :]
            same.fill_diagonal_(False)
            loss = F.cross_entropy(scores.masked_fill(same, -1e4), torch.arange(len(who)))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
