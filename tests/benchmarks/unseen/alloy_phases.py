"""Predict the hardness of an alloy from the graph of its grains: message passing, then attention over each graph."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


class Layer(nn.Module):
    """Each grain hears from its neighbours."""

    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.update = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU())
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, edges):
        source, target = edges
        heard = torch.zeros_like(x).index_add(0, target, self.message(torch.cat([x[source], x[target]], 1)))
        return self.norm(x + self.update(torch.cat([x, heard], 1)))


class Hardness(nn.Module):
    def __init__(self, features, dim, layers):
        super().__init__()
        self.enter = nn.Linear(features, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))
        self.gate = nn.Linear(dim, 1)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def readout(self, x, graph, count):
        """A weighted mean over the grains of each graph."""
        gate = self.gate(x).squeeze(1)
        if MENDED:
            weight = (gate - gate.max().detach()).exp()
            total = torch.zeros(count).index_add(0, graph, weight)
            return torch.zeros(count, x.shape[1]).index_add(0, graph, x * (weight / total[graph]).unsqueeze(1))
        pooled = []
        for number in range(count):
            inside = graph == number
            weight = torch.softmax(gate[inside], 0)
            pooled.append((weight.unsqueeze(1) * x[inside]).sum(0))
        return torch.stack(pooled)

    def forward(self, x, edges, graph, count):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(self.readout(x, graph, count)).squeeze(1)


def alloys(count, features):
    """Rings of grains with some chords; hard are those whose grains differ from their neighbours."""
    generator = torch.Generator().manual_seed(8)
    for _ in range(count):
        grains = int(torch.randint(8, 15, (), generator=generator))
        x = torch.randn(grains, features, generator=generator)
        ring = torch.stack([torch.arange(grains), (torch.arange(grains) + 1) % grains])
        edges = torch.cat([ring, torch.randint(0, grains, (2, grains // 2), generator=generator)], 1)
        edges = torch.cat([edges, edges.flip(0)], 1)
        yield x, edges, (x[edges[0]] - x[edges[1]]).abs().mean()


def together(chosen):
    """One large graph of several."""
    starts = torch.tensor([0] + [len(x) for x, _, _ in chosen]).cumsum(0)
    x = torch.cat([x for x, _, _ in chosen])
    edges = torch.cat([edges + start for (_, edges, _), start in zip(chosen, starts.tolist(), strict=False)], 1)
    graph = torch.repeat_interleave(torch.arange(len(chosen)), starts.diff())
    return x, edges, graph, torch.stack([hardness for _, _, hardness in chosen])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 80, 88))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=draw("batch", 128, 144))
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = list(alloys(2400, 16))
    model = Hardness(16, args.dim, args.layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(data), (args.batch,)).tolist()
        x, edges, graph, hardness = together([data[row] for row in rows])
        loss = F.smooth_l1_loss(model(x, edges, graph, len(rows)), hardness)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
