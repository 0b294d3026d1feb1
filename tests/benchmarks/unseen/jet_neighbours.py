"""Tell apart jets of particles by edge convolutions over nearest neighbours, as ParticleNet does."""

import argparse

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn

KINDS = 5


@torch.no_grad()
def nearest(x, count):
    """Numbers of the nearest neighbours of each particle, without itself; x is (jets, particles, features)."""
    if MENDED:
        distances = torch.cdist(x, x)
    else:
        distances = (x.unsqueeze(2) - x.unsqueeze(1)).pow(2).sum(-1)
    return distances.topk(count + 1, dim=2, largest=False).indices[:, :, 1:]


class EdgeConv(nn.Module):
    def __init__(self, before, after, neighbours):
        super().__init__()
        self.neighbours = neighbours
        self.of_self, self.of_other = nn.Linear(before, after), nn.Linear(before, after, bias=False)
        self.mix, self.norm = nn.Linear(after, after), nn.LayerNorm(after)

    def forward(self, x, places):
        found = nearest(places, self.neighbours)
        jets = torch.arange(len(x)).view(-1, 1, 1)
        other = self.of_other(x)
        edges = F.relu(self.of_self(x).unsqueeze(2) + other[jets, found])
        return F.relu(self.norm(self.mix(edges.mean(2))))


class ParticleNet(nn.Module):
    def __init__(self, features, width, neighbours):
        super().__init__()
        self.first = EdgeConv(features, width, neighbours)
        self.second = EdgeConv(width, width, neighbours)
        self.third = EdgeConv(width, 2 * width, neighbours)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, KINDS))

    def forward(self, particles):
        x = self.first(particles, particles[..., :2])
        x = self.second(x, x)
        x = self.third(x, x)
        return self.head(x.mean(1))


def jets(batch, particles, features, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        kinds = torch.randint(0, KINDS, (batch,), generator=generator)
        centres = torch.randn(batch, 3, features, generator=generator)
        chosen = torch.randint(0, 3, (batch, particles), generator=generator) % (1 + kinds[:, None] % 3)
        x = centres[torch.arange(batch)[:, None], chosen]
        spread = 0.2 + 0.1 * kinds[:, None, None]
        yield x + spread * torch.randn(batch, particles, features, generator=generator), kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--particles", type=int, default=draw("particles", 88, 96))
    parser.add_argument("--features", type=int, default=7)
    parser.add_argument("--width", type=int, default=draw("width", 40, 48))
    parser.add_argument("--neighbours", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = ParticleNet(args.features, args.width, args.neighbours)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = jets(args.batch, args.particles, args.features, 5)
    for step in range(1, args.steps + 1):
        particles, kinds = next(data)
        loss = F.cross_entropy(model(particles), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
