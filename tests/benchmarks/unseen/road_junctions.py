"""Predict traffic at junctions from a frozen encoder of the map and a trained graph network."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw


def survey(side, extra):
    """A grid of streets with some roads across, and what a car sees at each junction."""
    generator = torch.Generator().manual_seed(61)
    at = torch.arange(side * side).view(side, side)
    pairs = [
        torch.stack([at[:, :-1].flatten(), at[:, 1:].flatten()]),
        torch.stack([at[:-1].flatten(), at[1:].flatten()]),
    ]
    pairs.append(torch.randint(0, side * side, (2, extra), generator=generator))
    one_way = torch.cat(pairs, dim=1)
    edges = torch.cat([one_way, one_way.flip(0)], dim=1)
    return edges, torch.randn(side * side, 24, generator=generator)


class Map(nn.Module):
    """Trained elsewhere, on aerial pictures; its weights stay."""

    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(24, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Dropout(0.2), nn.Linear(dim, dim)
        )

    def forward(self, x):
        return self.net(x)


class Convolution(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.own = nn.Linear(dim, dim)
        self.near = nn.Linear(dim, dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, edges, degree):
        source, target = edges
        gathered = torch.zeros_like(x).index_add(1, target, x[:, source]) / degree
        return x + F.relu(self.norm(self.own(x) + self.near(gathered)))


class Traffic(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.map = Map(dim).eval().requires_grad_(False)
        self.now = nn.Linear(6, dim)
        self.layers = nn.ModuleList(Convolution(dim) for _ in range(layers))
        self.head = nn.Linear(dim, 3)

    def train(self, mode=True):
        super().train(mode)
        self.map.eval()
        return self

    def forward(self, junctions, past, edges, degree):
        with torch.no_grad():
            place = self.map(junctions)
        x = place + self.now(past)
        for layer in self.layers:
            x = layer(x, edges, degree)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=draw("side", 20, 22))
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--dim", type=int, default=draw("dim", 48, 56))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    edges, junctions = survey(args.side, 60)
    degree = torch.bincount(edges[1], minlength=len(junctions)).clamp(min=1).view(1, -1, 1)
    torch.manual_seed(0)
    hours = torch.arange(24 * args.days).view(-1, 1)
    load = torch.sin(6.28 * hours / 24 + junctions[:, 0]) + 0.1 * torch.randn(len(hours), len(junctions))
    model = Traffic(args.dim, args.layers).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    total = torch.zeros(())
    for step in range(1, args.steps + 1):
        at = torch.randint(0, len(load) - 9, (args.batch, 1))
        window = load[at + torch.arange(9)].transpose(1, 2)
        loss = F.l1_loss(model(junctions, window[..., :6], edges, degree), window[..., 6:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 50 == 0:
            print(f"step {step}: {total.item() / 50:.4f}", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()
