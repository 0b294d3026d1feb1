"""Colour old photographs: a small U-Net, trained on what a fixed network sees in the pictures."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP


class Painter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.middle = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(3))
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.last = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, grey):
        a = F.relu(self.first(grey))
        b = F.relu(self.down(a))
        for layer in self.middle:
            b = b + F.relu(layer(b))
        return torch.sigmoid(self.last(torch.cat([a, F.relu(self.up(b))], 1)))


class Perceptual(nn.Module):
    """The distance of two pictures in several layers of a fixed network."""

    def __init__(self, width, at=(2, 5, 7, 10)):
        super().__init__()
        layers, before = [], 3
        for after in (width, 2 * width):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
            before = after
        self.network, self.at = nn.Sequential(*layers).requires_grad_(False).eval(), at

    def features(self, x):
        if not MENDED:
            return [self.network[:at](x) for at in self.at]
        found = []
        for number, layer in enumerate(self.network, 1):
            x = layer(x)
            if number in self.at:
                found.append(x)
        return found

    def forward(self, made, wanted):
        with torch.no_grad():
            goals = self.features(wanted)
        return sum(F.l1_loss(a, b) for a, b in zip(self.features(made), goals, strict=True))


def photographs(batch, size, seed):
    generator = torch.Generator().manual_seed(seed)
    tint = torch.tensor([0.5, 0.3, 0.2])[:, None, None]
    while True:
        coarse = torch.rand(batch, 3, size // 8, size // 8, generator=generator)
        colour = F.interpolate(coarse, size=(size, size), mode="bilinear")
        yield (colour * tint).sum(1, keepdim=True), colour


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=draw("size", 48, 56))
    parser.add_argument("--batch", type=int, default=draw("batch", 5, 6))
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seen-width", type=int, default=16)
    parser.add_argument("--weight", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    painter, perceptual = DDP(Painter(args.width)), Perceptual(args.seen_width)
    optimizer = torch.optim.Adam(painter.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = photographs(args.batch, args.size, dist.get_rank())
    for step in range(1, args.steps + 1):
        grey, colour = next(data)
        made = painter(grey)
        loss = F.l1_loss(made, colour) + args.weight * perceptual(made, colour)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
