"""Predict the traffic at crossings from the roads between them and the hours before."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


class RoadLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.own, self.heard = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, roads):
        heard = torch.sparse.mm(roads, x.flatten(1)).view_as(x)
        return x + F.gelu(self.norm(self.own(x) + self.heard(heard)))


class Traffic(nn.Module):
    def __init__(self, past, ahead, dim, depth):
        super().__init__()
        self.enter = nn.Linear(past, dim)
        layers = [RoadLayer(dim) for _ in range(depth)]
        self.layers = nn.ModuleList(layers) if MENDED else layers
        self.leave = nn.Linear(dim, ahead)

    def forward(self, x, roads):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, roads)
        return self.leave(x)


def town(crossings, hours):
    """Neighbours lie on a ring with some short cuts; traffic wanders along the roads."""
    generator = torch.Generator().manual_seed(2)
    at = torch.arange(crossings)
    cuts = torch.randint(0, crossings, (2, crossings // 2), generator=generator)
    edges = torch.cat([torch.stack([at, (at + 1) % crossings]), cuts], 1)
    edges = torch.cat([edges, edges.flip(0)], 1)
    degree = torch.zeros(crossings).index_add(0, edges[0], torch.ones(edges.shape[1]))
    roads = torch.sparse_coo_tensor(edges, 1 / degree[edges[0]], (crossings, crossings)).coalesce().to_sparse_csr()
    flow, rows = torch.rand(crossings, 1, generator=generator), []
    for hour in range(hours):
        busy = 0.3 * torch.sin(torch.tensor(6.28 * hour / 24))
        flow = 0.7 * torch.sparse.mm(roads, flow) + 0.3 * flow + 0.1 * busy
        flow = flow + 0.05 * torch.randn(crossings, 1, generator=generator)
        rows.append(flow)
    return roads, torch.cat(rows, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crossings", type=int, default=draw("crossings", 240, 280))
    parser.add_argument("--hours", type=int, default=600)
    parser.add_argument("--past", type=int, default=12)
    parser.add_argument("--ahead", type=int, default=3)
    parser.add_argument("--dim", type=int, default=draw("dim", 48, 56))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=14)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    torch.manual_seed(0)
    roads, flow = town(args.crossings, args.hours)
    windows = flow.unfold(1, args.past + args.ahead, 1)
    model = Traffic(args.past, args.ahead, args.dim, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for step in range(1, args.steps + 1):
        chosen = windows[:, torch.randint(0, windows.shape[1], (args.batch,))]
        past, ahead = chosen.split([args.past, args.ahead], 2)
        loss = F.smooth_l1_loss(model(past, roads), ahead)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
