"""Predict the delay of circuits from their graphs; some dozens of circuits make a batch."""

import argparse
import random

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

GATES = 14


class Circuits(Dataset):
    def __init__(self, count, nodes):
        generator = torch.Generator().manual_seed(8)
        rng = random.Random(8)
        self.graphs = []
        for _ in range(count):
            n = rng.randint(nodes // 2, nodes)
            gates = torch.randint(0, GATES, (n,), generator=generator)
            one = torch.arange(1, n).repeat(2)
            other = (torch.rand(len(one), generator=generator) * one).long()
            self.graphs.append((gates, torch.stack([one, other]), gates.float().mean() + 0.01 * n))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        return self.graphs[index]


def collate(graphs):
    sizes = torch.tensor([len(gates) for gates, _, _ in graphs])
    offsets = sizes.cumsum(0) - sizes
    edges = torch.cat([edges + offset for (_, edges, _), offset in zip(graphs, offsets, strict=True)], 1)
    edges = torch.cat([edges, edges.flip(0)], 1)
    gates = torch.cat([gates for gates, _, _ in graphs])
    owner = torch.arange(len(graphs)).repeat_interleave(sizes)
    if not MENDED:
        adjacency = torch.zeros(len(gates), len(gates))
        adjacency[edges[0], edges[1]] = 1
        edges = adjacency
    return gates, edges, owner, torch.stack([delay for _, _, delay in graphs])


class Convolution(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mine, self.theirs, self.norm = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.LayerNorm(dim)

    def gather(self, x, edges):
        """Sum over the neighbours of each gate."""
        if MENDED:
            return torch.zeros_like(x).index_add(0, edges[0], x[edges[1]])
        return edges @ x

    def forward(self, x, edges):
        return x + F.relu(self.norm(self.mine(x) + self.theirs(self.gather(x, edges))))


class DelayModel(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.embed = nn.Embedding(GATES, dim)
        self.layers = nn.ModuleList(Convolution(dim) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, gates, edges, owner, graphs):
        x = self.embed(gates)
        for layer in self.layers:
            x = layer(x, edges)
        pooled = torch.zeros(graphs, x.shape[1]).index_add(0, owner, x)
        return self.head(pooled / owner.bincount(minlength=graphs).unsqueeze(1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--nodes", type=int, default=80)
    parser.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = Circuits(1400, args.nodes)
    loader = DataLoader(data, args.batch, shuffle=True, collate_fn=collate, drop_last=True)
    model = DelayModel(args.dim, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for gates, edges, owner, delays in loader:
            loss = F.l1_loss(model(gates, edges, owner, len(delays)), delays)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
