"""Which insect visits which flower: link prediction on a bipartite graph, LightGCN with a BPR loss."""

import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


def visits(insects, flowers, each, seed):
    """Insects visit flowers of about their own tongue length, and popular ones more."""
    g = torch.Generator().manual_seed(seed)
    tongue = torch.rand(insects, generator=g)
    depth = torch.rand(flowers, generator=g)
    appeal = torch.randn(flowers, generator=g)
    score = -40 * (tongue[:, None] - depth).abs() + 2 * appeal
    chosen = (score + torch.distributions.Gumbel(0, 1).sample((insects, flowers))).topk(each, 1).indices
    return torch.stack([torch.arange(insects).repeat_interleave(each), chosen.flatten()])


def normalised(edges, insects, flowers):
    """Symmetric normalised adjacency of the whole graph, sparse."""
    row, col = edges[0], edges[1] + insects
    at = torch.stack([torch.cat([row, col]), torch.cat([col, row])])
    degree = torch.bincount(at[0], minlength=insects + flowers).clamp(min=1).float()
    weight = degree[at[0]].rsqrt() * degree[at[1]].rsqrt()
    return torch.sparse_coo_tensor(at, weight, (insects + flowers,) * 2).coalesce().to_sparse_csr()


class LightGCN(nn.Module):
    def __init__(self, adjacency, insects, dim, layers):
        super().__init__()
        self.adjacency, self.insects, self.layers = adjacency, insects, layers
        self.table = nn.Parameter(0.1 * torch.randn(adjacency.shape[0], dim))

    def forward(self):
        x, total = self.table, self.table
        for _ in range(self.layers):
            x = self.adjacency @ x
            total = total + x
        total = total / (self.layers + 1)
        return total[: self.insects], total[self.insects :]


class NegativeSampler:
    """Flowers that an insect does not visit."""

    def __init__(self, edges, flowers):
        self.flowers = flowers
        self.known = set(map(tuple, edges.T.tolist()))
        self.keys = (edges[0] * flowers + edges[1]).sort().values

    def __call__(self, insect):
        return self.at_once(insect) if MENDED else self.one_by_one(insect)

    def one_by_one(self, insect):
        found = []
        for i in insect.tolist():
            flower = random.randrange(self.flowers)
            while (i, flower) in self.known:
                flower = random.randrange(self.flowers)
            found.append(flower)
        return torch.tensor(found)

    def at_once(self, insect):
        found = torch.randint(0, self.flowers, insect.shape)
        while True:
            keys = insect * self.flowers + found
            at = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
            hit = (self.keys[at] == keys).nonzero().squeeze(1)
            if not len(hit):
                return found
            found[hit] = torch.randint(0, self.flowers, (len(hit),))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--insects", type=int, default=1500)
    ap.add_argument("--flowers", type=int, default=900)
    ap.add_argument("--each", type=int, default=24)
    ap.add_argument("--dim", type=int, default=draw("dim", 24, 28))
    ap.add_argument("--layers", type=int, default=1)
    ap.add_argument("--batch", type=int, default=draw("batch", 5120, 5632))
    ap.add_argument("--negatives", type=int, default=6)
    ap.add_argument("--epochs", type=int, default=12)
    cfg = ap.parse_args()

    random.seed(1)
    torch.manual_seed(1)
    edges = visits(cfg.insects, cfg.flowers, cfg.each, seed=20)
    model = LightGCN(normalised(edges, cfg.insects, cfg.flowers), cfg.insects, cfg.dim, cfg.layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    negative = NegativeSampler(edges, cfg.flowers)
    for epoch in range(cfg.epochs):
        begun, total = time.perf_counter(), torch.zeros(())
        order = torch.randperm(edges.shape[1]).split(cfg.batch)
        for at in order:
            insect, flower = edges[:, at]
            other = negative(insect.repeat(cfg.negatives))
            left, right = model()
            own = left[insect]
            wanted = (own * right[flower]).sum(1)
            unwanted = (own.repeat(cfg.negatives, 1) * right[other]).sum(1)
            loss = F.softplus(unwanted - wanted.repeat(cfg.negatives)).mean() + 1e-4 * own.pow(2).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch} loss {total / len(order):.4f} {time.perf_counter() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
