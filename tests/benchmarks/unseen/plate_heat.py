"""How heat spreads in a plate, by a network that knows the equation (PINN), fitted to random points."""

import argparse
import math

import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.autograd.functional import jacobian


class Field(nn.Module):
    """Temperature, and flow in both directions, at a place and a time."""

    def __init__(self, hidden, depth):
        super().__init__()
        layers, enter = [], 3
        for _ in range(depth):
            layers += [nn.Linear(enter, hidden), nn.Tanh()]
            enter = hidden
        self.net = nn.Sequential(*layers, nn.Linear(hidden, 3))

    def forward(self, points):
        return self.net(points)


def slopes(field, points):
    """Of each of the three results at each point, how it changes with x, y and t."""
    if MENDED:
        points = points.requires_grad_()
        found = field(points)
        rows = [torch.autograd.grad(found[:, at].sum(), points, create_graph=True)[0] for at in range(3)]
        return found, torch.stack(rows, 1)
    found = field(points)
    whole = jacobian(field, points, create_graph=True, vectorize=True)
    at = torch.arange(len(points))
    return found, whole[at, :, at]


def physics(field, points, conductance):
    found, slope = slopes(field, points)
    flow = found[:, 1:] + conductance * slope[:, 0, :2]
    balance = slope[:, 0, 2] + slope[:, 1, 0] + slope[:, 2, 1]
    return flow.square().mean() + balance.square().mean()


def start(points):
    return (math.pi * points[:, 0]).sin() * (math.pi * points[:, 1]).sin()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 48, 56))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--inside", type=int, default=draw("inside", 28, 32))
    parser.add_argument("--border", type=int, default=512)
    parser.add_argument("--conductance", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    torch.manual_seed(0)
    field = Field(args.hidden, args.depth)
    optimizer = torch.optim.Adam(field.parameters(), lr=2e-3, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    for step in range(1, args.steps + 1):
        inside = torch.rand(args.inside, 3)
        begin = torch.cat([torch.rand(args.border, 2), torch.zeros(args.border, 1)], 1)
        edge = torch.rand(args.border, 3)
        edge[:, 0] = edge[:, 0].round()
        known = (field(begin)[:, 0] - start(begin)).square().mean() + field(edge)[:, 0].square().mean()
        loss = physics(field, inside, args.conductance) + 10 * known
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
