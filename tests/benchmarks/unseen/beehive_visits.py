"""Which hives share flowers: links between hives from visits of bees, a graph network with edge features."""

import argparse
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.profiler import ProfilerActivity, profile, schedule


def landscape(hives, per_hive, seed):
    g = torch.Generator().manual_seed(seed)
    place = torch.rand(hives, 2, generator=g)
    near = torch.cdist(place, place).topk(per_hive + 1, largest=False).indices[:, 1:]
    edges = torch.stack([near.reshape(-1), torch.arange(hives).repeat_interleave(per_hive)])
    way = place[edges[0]] - place[edges[1]]
    yields = torch.sin(6 * place[:, :1]) + torch.cos(7 * place[:, 1:])
    features = torch.cat([place, yields + 0.2 * torch.randn(hives, 1, generator=g)], 1)
    return features, edges, torch.cat([way, way.norm(dim=1, keepdim=True)], 1)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim + 3, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.gate = nn.Linear(dim, 1)
        self.update = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, edges, way):
        source, target = edges
        m = self.message(torch.cat([x[source], x[target], way], 1))
        m = m * torch.sigmoid(self.gate(m))
        seen = torch.zeros_like(x).index_add_(0, target, m)
        return self.norm(x + self.update(torch.cat([x, seen], 1)))


class VisitNet(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.first = nn.Linear(3, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.pair = nn.Bilinear(dim, dim, 1)

    def forward(self, x, edges, way, left, right):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edges, way)
        return self.pair(x[left], x[right]).squeeze(1)


def slowest(prof):
    rows = sorted(prof.key_averages(), key=lambda row: -row.self_cpu_time_total)
    with open("operators.txt", "a") as out:
        for row in rows[:10]:
            out.write(f"{row.key} {row.self_cpu_time_total / 1000:.2f} ms\n")


def watched():
    if MENDED:
        return contextlib.nullcontext()
    plan = schedule(wait=10, warmup=1, active=1)
    return profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=slowest, record_shapes=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--hives", type=int, default=draw("hives", 200, 220, 240))
    p.add_argument("--apiaries", type=int, default=12)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--depth", type=int, default=draw("depth", 3, 4))
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--steps", type=int, default=120)
    args = p.parse_args()

    torch.manual_seed(18)
    apiaries = [landscape(args.hives, 5, seed) for seed in range(args.apiaries)]
    model = VisitNet(args.dim, args.depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with watched() as prof:
        for step in range(1, args.steps + 1):
            optimizer.zero_grad()
            shown = torch.zeros(())
            for at in torch.randint(args.apiaries, (args.accumulate,)).tolist():
                features, edges, way = apiaries[at]
                left, right = torch.randint(args.hives, (2, 256))
                shared = ((features[left, 2] - features[right, 2]).abs() < 0.4).float()
                logits = model(features, edges, way, left, right)
                loss = F.binary_cross_entropy_with_logits(logits, shared) / args.accumulate
                loss.backward()
                shown += loss.detach()
            optimizer.step()
            if prof is not None:
                prof.step()
            if step % 20 == 0:
                print(f"step {step} loss {shown.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
