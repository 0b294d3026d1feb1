"""Ships in bottles from pictures around them: a radiance field with a coarse and a fine network, plain loop."""

import argparse
import contextlib
import math
import warnings

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn

warnings.filterwarnings("ignore", message="Anomaly Detection")
NEAR, FAR = 1.0, 5.0


def scene(point):
    """Density and colour of hull, mast and sail, as the pictures are made."""
    x, y, z = point.unbind(-1)
    hull = torch.sigmoid(20 * (0.3 - (x / 2.2).square() - (3 * (y + 0.3)).square() - (2 * z).square()))
    mast = torch.sigmoid(60 * (0.06 - (x.square() + z.square()).sqrt())) * (y.abs() < 0.6)
    sail = torch.sigmoid(20 * (0.4 - (x - 0.2).abs() - y.abs())) * torch.sigmoid(40 * (0.06 - z.abs()))
    parts = torch.stack([hull, mast, sail], -1)
    colour = parts @ torch.tensor([[0.4, 0.2, 0.1], [0.6, 0.5, 0.3], [0.9, 0.9, 0.8]])
    return 12 * parts.sum(-1), (colour / (parts.sum(-1, keepdim=True) + 1e-3)).clamp(0, 1)


def rays(count, g):
    """Starts on a sphere of radius 3, aimed near the middle."""
    start = 3 * F.normalize(torch.randn(count, 3, generator=g), dim=1)
    return start, F.normalize(0.6 * torch.randn(count, 3, generator=g) - start, dim=1)


def rendered(density, colour, depth):
    """Colour of each ray, and the weight of each of its points."""
    gap = torch.cat([depth[:, 1:] - depth[:, :-1], torch.full_like(depth[:, :1], 0.1)], 1)
    alpha = 1 - torch.exp(-density * gap)
    free = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    weight = alpha * free
    return (weight[..., None] * colour).sum(1) + 1 - weight.sum(1, keepdim=True), weight


def pictures(count, g):
    start, aim = rays(count, g)
    depth = torch.linspace(NEAR, FAR, 96).expand(count, -1)
    density, colour = scene(start[:, None] + depth[..., None] * aim[:, None])
    return start, aim, rendered(density, colour, depth)[0]


def waves(x, levels):
    found = [x]
    for level in range(levels):
        found += [torch.sin(math.pi * 2**level * x), torch.cos(math.pi * 2**level * x)]
    return torch.cat(found, -1)


class Field(nn.Module):
    def __init__(self, hidden, levels=5, turns=2):
        super().__init__()
        self.levels, self.turns = levels, turns
        wide, side = 3 * (2 * levels + 1), 3 * (2 * turns + 1)
        self.first, self.second = nn.Linear(wide, hidden), nn.Linear(hidden, hidden)
        self.third, self.fourth = nn.Linear(hidden + wide, hidden), nn.Linear(hidden, hidden)
        self.density, self.seen = nn.Linear(hidden, 1), nn.Linear(hidden + side, hidden // 2)
        self.colour = nn.Linear(hidden // 2, 3)

    def forward(self, point, aim):
        place, side = waves(point, self.levels), waves(aim, self.turns)
        x = F.relu(self.second(F.relu(self.first(place))))
        x = F.relu(self.fourth(F.relu(self.third(torch.cat([x, place], -1)))))
        density = F.softplus(self.density(x).squeeze(-1) - 1)
        x = F.relu(self.seen(torch.cat([x, side], -1)))
        return density, torch.sigmoid(self.colour(x))


class Ship(nn.Module):
    """A coarse field tells the fine one where to look."""

    def __init__(self, hidden, coarse, fine):
        super().__init__()
        self.coarse, self.fine = Field(hidden), Field(hidden)
        self.count = (coarse, fine)

    def look(self, field, start, aim, depth):
        point = start[:, None] + depth[..., None] * aim[:, None]
        return rendered(*field(point, aim[:, None].expand_as(point)), depth)

    def finer(self, depth, weight):
        """Depths drawn by the weights of the coarse points."""
        chance = (weight[:, 1:-1] + 1e-4).cumsum(1)
        drawn = torch.rand(len(depth), self.count[1]) * chance[:, -1:]
        at = torch.searchsorted(chance, drawn).clamp(max=chance.shape[1] - 1) + 1
        return depth.gather(1, at) + (FAR - NEAR) / self.count[0] * (torch.rand_like(drawn) - 0.5)

    def forward(self, start, aim):
        shift = torch.rand(len(start), self.count[0])
        depth = NEAR + (FAR - NEAR) * (torch.arange(self.count[0]) + shift) / self.count[0]
        first, weight = self.look(self.coarse, start, aim, depth)
        both = torch.cat([depth, self.finer(depth, weight.detach())], 1).sort(1).values
        return first, self.look(self.fine, start, aim, both)[0]


def guarded():
    """Around forward and backward of a step."""
    return contextlib.nullcontext() if MENDED else torch.autograd.detect_anomaly()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--hidden", type=int, default=draw("hidden", 96, 112))
    p.add_argument("--coarse", type=int, default=12)
    p.add_argument("--fine", type=int, default=12)
    p.add_argument("--rays", type=int, default=draw("rays", 288, 320))
    p.add_argument("--steps", type=int, default=160)
    args = p.parse_args()

    torch.manual_seed(29)
    g = torch.Generator().manual_seed(1)
    start, aim, colour = pictures(20_000, g)
    held = pictures(400, g)
    model = Ship(args.hidden, args.coarse, args.fine)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    for step in range(args.steps):
        rows = torch.randint(len(start), (args.rays,))
        with guarded():
            first, second = model(start[rows], aim[rows])
            loss = F.mse_loss(first, colour[rows]) + F.mse_loss(second, colour[rows])
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        schedule.step()
        if step % 40 == 39:
            with torch.no_grad():
                error = F.mse_loss(model(held[0], held[1])[1], held[2])
            print(f"step {step + 1} loss {loss.item():.4f} signal {-10 * math.log10(error):.2f}", flush=True)


if __name__ == "__main__":
    main()
