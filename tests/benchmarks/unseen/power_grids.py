"""Predict whether a power grid stays stable after a line fails: message passing on small graphs."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


def build_grids(count, least, most, features):
    """Rings with chords; a grid is stable where its loads are well below its supply."""
    generator = torch.Generator().manual_seed(21)
    grids = []
    for _ in range(count):
        nodes = int(torch.randint(least, most, (1,), generator=generator))
        ring = torch.arange(nodes)
        chords = torch.randint(0, nodes, (2, nodes), generator=generator)
        one_way = torch.cat([torch.stack([ring, ring.roll(1)]), chords], dim=1)
        edges = torch.cat([one_way, one_way.flip(0)], dim=1)
        x = torch.randn(nodes, features, generator=generator)
        grids.append((x, edges, (x[:, 0].sum() > 0).float()))
    return grids


def collate(grids):
    """One big graph, with the grid that each node is in."""
    xs, edges, owner, first = [], [], [], 0
    for number, (x, edge, _) in enumerate(grids):
        xs.append(x)
        edges.append(edge + first)
        owner.append(torch.full((len(x),), number))
        first += len(x)
    return torch.cat(xs), torch.cat(edges, dim=1), torch.cat(owner), torch.stack([y for _, _, y in grids])


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.update = nn.GRUCell(dim, dim)

    def forward(self, x, edges):
        source, target = edges
        sent = self.message(torch.cat([x[source], x[target]], dim=1))
        return self.update(torch.zeros_like(x).index_add(0, target, sent), x)


class Stability(nn.Module):
    def __init__(self, features, dim, layers):
        super().__init__()
        self.enter = nn.Linear(features, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))
        self.gate = nn.Linear(dim, 1)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def pool(self, x, owner, count):
        """A mean of the nodes of each grid, weighted by a softmax over them."""
        score = self.gate(x).squeeze(1)
        if MENDED:
            weight = (score - score.max()).exp()
            total = torch.zeros(count).index_add(0, owner, weight)
            return torch.zeros(count, x.shape[1]).index_add(0, owner, x * (weight / total[owner]).unsqueeze(1))
        pooled = []
        for number in range(count):
            mine = owner == number
            weight = torch.softmax(score[mine], dim=0)
            pooled.append((x[mine] * weight.unsqueeze(1)).sum(0))
        return torch.stack(pooled)

    def forward(self, x, edges, owner, count):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(self.pool(x, owner, count)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grids", type=int, default=3000)
    parser.add_argument("--dim", type=int, default=draw("dim", 48, 52))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 208, 224))
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    torch.manual_seed(0)
    grids = build_grids(args.grids, 8, 16, 8)
    model = Stability(8, args.dim, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    right = seen = 0
    for step in range(1, args.steps + 1):
        batch = [grids[i] for i in torch.randint(0, len(grids), (args.batch,)).tolist()]
        x, edges, owner, stable = collate(batch)
        logits = model(x, edges, owner, len(batch))
        loss = F.binary_cross_entropy_with_logits(logits, stable)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += ((logits > 0) == stable.bool()).sum().item()
        seen += len(stable)
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}, right {right / seen:.3f}", flush=True)
            right = seen = 0


if __name__ == "__main__":
    main()
