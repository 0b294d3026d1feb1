"""Which spice a harbour trades in: graph convolutions over the whole graph of routes at once, plain loop."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw

SPICES, FEATURES = 12, 64


def routes(harbours, degree, seed=71):
    """Harbours of the same spice are joined more often; features tell little."""
    g = torch.Generator().manual_seed(seed)
    spice = torch.randint(0, SPICES, (harbours,), generator=g)
    by_spice = spice.argsort()
    place = by_spice.argsort()
    start = torch.arange(harbours).repeat_interleave(degree)
    near = (place[start] + torch.randint(-60, 61, start.shape, generator=g)) % harbours
    anywhere = torch.randint(0, harbours, start.shape, generator=g)
    end = torch.where(torch.rand(start.shape, generator=g) < 0.6, by_spice[near], anywhere)
    features = torch.randn(harbours, FEATURES, generator=g)
    features[torch.arange(harbours), spice] += 0.7
    split = torch.rand(harbours, generator=g)
    return torch.stack([start, end]), features, spice, split < 0.6, split >= 0.8


def propagation(edges, harbours):
    """D^-1/2 (A + I) D^-1/2, made once."""
    loops = torch.arange(harbours).expand(2, -1)
    at = torch.cat([edges, edges.flip(0), loops], 1)
    degree = torch.bincount(at[0], minlength=harbours).float()
    weight = degree[at[0]].rsqrt() * degree[at[1]].rsqrt()
    return torch.sparse_coo_tensor(at, weight, (harbours, harbours)).coalesce().to_sparse_csr()


class GraphConvolution(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.linear = nn.Linear(cin, cout)

    def forward(self, adjacency, x):
        return adjacency @ self.linear(x)


class GCN(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.layers = nn.ModuleList(
            [GraphConvolution(FEATURES, hidden), GraphConvolution(hidden, hidden), GraphConvolution(hidden, SPICES)]
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, adjacency, x):
        for layer in self.layers[:-1]:
            x = self.dropout(F.relu(layer(adjacency, x)))
        return self.layers[-1](adjacency, x)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--harbours", type=int, default=draw("harbours", 5000, 5600))
    ap.add_argument("--degree", type=int, default=6)
    ap.add_argument("--hidden", type=int, default=draw("hidden", 112, 128))
    ap.add_argument("--dropout", type=float, default=0.5)
    ap.add_argument("--epochs", type=int, default=110)
    ap.add_argument("--lr", type=float, default=0.01)
    args = ap.parse_args()

    torch.manual_seed(6)
    edges, features, spice, train, test = routes(args.harbours, args.degree)
    adjacency = propagation(edges, args.harbours)
    model = GCN(args.hidden, args.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
    for epoch in range(1, args.epochs + 1):
        # the whole graph is one batch: an epoch is a step
        logits = model(adjacency, features)
        loss = F.cross_entropy(logits[train], spice[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 25 == 0:
            model.eval()
            with torch.no_grad():
                right = (model(adjacency, features).argmax(1) == spice)[test].float().mean()
            model.train()
            print(f"epoch {epoch} loss {loss.item():.4f} test {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
