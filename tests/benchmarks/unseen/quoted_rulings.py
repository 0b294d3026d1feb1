"""Name the field of law of court rulings from who quotes whom: a graph network over the whole graph at once."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw

FIELDS = 8


def rulings(count, quotes, features):
    """Rulings quote mostly those of their own field."""
    generator = torch.Generator().manual_seed(37)
    field = torch.randint(0, FIELDS, (count,), generator=generator)
    typical = torch.randn(FIELDS, features, generator=generator)
    x = typical[field] + 6 * torch.randn(count, features, generator=generator)
    source = torch.randint(0, count, (3 * quotes,), generator=generator)
    target = torch.randint(0, count, (3 * quotes,), generator=generator)
    kept = (field[source] == field[target]) | (torch.rand(3 * quotes, generator=generator) < 0.2)
    edges = torch.stack([source[kept], target[kept]])
    edges = torch.cat([edges, edges.flip(0), torch.arange(count).repeat(2, 1)], 1)
    part = torch.rand(count, generator=generator)
    return x, edges, field, part < 0.5, part > 0.8


def adjacency(edges, count):
    """Normalised on both sides, made once; its rows are compressed."""
    degree = torch.bincount(edges[1], minlength=count).float()
    weight = (degree[edges[0]] * degree[edges[1]]).rsqrt()
    return torch.sparse_coo_tensor(edges.flip(0), weight, (count, count)).coalesce().to_sparse_csr()


class Rulings(nn.Module):
    def __init__(self, features, hidden, layers, dropout):
        super().__init__()
        self.enter = nn.Linear(features, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.head, self.dropout = nn.Linear(hidden, FIELDS), dropout

    def forward(self, x, around):
        x = first = F.relu(self.enter(F.dropout(x, self.dropout, self.training)))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            heard = around @ layer(F.dropout(x, self.dropout, self.training))
            x = x + F.relu(norm(0.9 * heard + 0.1 * first))
        return self.head(x)


@torch.no_grad()
def accuracy(model, x, around, field, chosen):
    model.eval()
    right = (model(x, around)[chosen].argmax(1) == field[chosen]).float().mean().item()
    model.train()
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rulings", type=int, default=draw("rulings", 4000, 4400))
    parser.add_argument("--quotes", type=int, default=40_000)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 96, 104))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=220)
    args = parser.parse_args()

    torch.manual_seed(0)
    x, edges, field, train, held_out = rulings(args.rulings, args.quotes, 64)
    around = adjacency(edges, args.rulings)
    model = Rulings(64, args.hidden, args.layers, 0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4)
    best = 0.0
    for step in range(1, args.steps + 1):
        loss = F.cross_entropy(model(x, around)[train], field[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            right = accuracy(model, x, around, field, held_out)
            if right > best:
                best = right
                torch.save(model.state_dict(), "best.pt")
            print(f"step {step}: {loss.item():.4f}, held out {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
