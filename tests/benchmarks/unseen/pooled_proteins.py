"""Classify proteins from the graphs of their residues; node features are pooled over each graph."""

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


class Layer(nn.Module):
    """Sum over neighbours, then a small network (GIN)."""

    def __init__(self, dim):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x, edges):
        heard = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return F.relu(self.net((1 + self.eps) * x + heard))


def pool(x, graph, count):
    """Mean and maximum over the nodes of each graph."""
    if MENDED:
        places = graph.unsqueeze(1).expand_as(x)
        empty = x.new_zeros(count, x.shape[1])
        mean = empty.scatter_reduce(0, places, x, "mean", include_self=False)
        return torch.cat([mean, empty.scatter_reduce(0, places, x, "amax", include_self=False)], 1)
    pooled = []
    for at in range(count):
        nodes = x[graph == at]
        pooled.append(torch.cat([nodes.mean(0), nodes.max(0).values]))
    return torch.stack(pooled)


class GIN(nn.Module):
    def __init__(self, kinds, dim, depth, classes):
        super().__init__()
        self.kinds = nn.Embedding(kinds, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.heads = nn.ModuleList(nn.Linear(2 * dim, classes) for _ in range(depth))

    def forward(self, batch):
        x = self.kinds(batch["kinds"])
        logits = 0
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = layer(x, batch["edges"])
            logits = logits + head(pool(x, batch["graph"], len(batch["labels"])))
        return logits


def protein(rng, classes):
    label, nodes = rng.randrange(classes), rng.randrange(14, 30)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    kinds = torch.randint(0, 16, (nodes,), generator=generator)
    kinds[: 2 + label] = label
    chain = torch.arange(nodes - 1)
    far = torch.randint(0, nodes, (2, nodes), generator=generator)
    edges = torch.cat([torch.stack([chain, chain + 1]), far], 1)
    return kinds, torch.cat([edges, edges.flip(0)], 1), label


def gather(proteins):
    sizes = torch.tensor([len(kinds) for kinds, _, _ in proteins])
    begins = (sizes.cumsum(0) - sizes).tolist()
    return {
        "kinds": torch.cat([kinds for kinds, _, _ in proteins]),
        "edges": torch.cat([edges + begin for (_, edges, _), begin in zip(proteins, begins, strict=True)], 1),
        "graph": torch.repeat_interleave(sizes),
        "labels": torch.tensor([label for _, _, label in proteins]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=6)
    parser.add_argument("--dim", type=int, default=draw("dim", 64, 72))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=draw("batch", 112, 128))
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(0)
    rng = random.Random(3)
    proteins = [protein(rng, args.classes) for _ in range(2600)]
    model = GIN(16, args.dim, args.depth, args.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        rng.shuffle(proteins)
        total, steps = 0.0, len(proteins) // args.batch
        for step in range(steps):
            batch = gather(proteins[step * args.batch : (step + 1) * args.batch])
            loss = F.cross_entropy(model(batch), batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / steps:.4f}", flush=True)


if __name__ == "__main__":
    main()
