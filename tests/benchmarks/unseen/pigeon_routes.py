"""Which loft a carrier pigeon flies to, from the first part of its recorded flight: convolutions and attention."""

import argparse
import itertools
import math
import random

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

LOFTS = 8
CHANNELS = ["east", "north", "height", "speed", "turn", "wind east", "wind north", "beats", "sun", "pull"]
SCALE = torch.tensor([20.0, 20.0, 80.0, 5.0, 0.3, 4.0, 4.0, 2.0, 1.0, 1.0])


def flight(rng, loft, length):
    """A record as a logger writes it: a list of readings for each channel."""
    record = {"loft": loft, "ring": f"B-{rng.randrange(10**6):06d}", **{name: [] for name in CHANNELS}}
    aim, east, north, height = 2 * math.pi * loft / LOFTS, rng.gauss(0, 8), rng.gauss(0, 8), 20.0
    heading, wind = rng.uniform(0, 2 * math.pi), (rng.gauss(0, 3), rng.gauss(0, 3))
    for _ in range(length):
        turn = 0.06 * math.sin(aim - heading) + rng.gauss(0, 0.25)
        heading, speed = heading + turn, 14 + rng.gauss(0, 3)
        east += 0.1 * (speed * math.cos(heading) + wind[0])
        north += 0.1 * (speed * math.sin(heading) + wind[1])
        height += rng.gauss(0.2, 2)
        pull = math.cos(heading - aim) * rng.random()
        reading = [east, north, height, speed, turn, *wind, 6 + rng.random(), math.cos(heading), pull]
        for name, value in zip(CHANNELS, reading, strict=True):
            record[name].append(round(value, 4))
    return record


class Flights(Dataset):
    def __init__(self, records):
        self.records = records
        self.tracks = [self.track(record) for record in records] if MENDED else None

    def __len__(self):
        return len(self.records)

    def track(self, record):
        return torch.tensor([record[name] for name in CHANNELS])

    def __getitem__(self, i):
        track = self.tracks[i] if MENDED else self.track(self.records[i])
        return (track - track.mean(1, keepdim=True)) / SCALE[:, None], self.records[i]["loft"]


class FlightNet(nn.Module):
    """Convolutions shorten the track by eight, two layers of attention read what is left."""

    def __init__(self, width, dim, depth):
        super().__init__()
        sizes = [len(CHANNELS), width, width, dim]
        self.short = nn.ModuleList(nn.Conv1d(a, b, 5, 2, 2) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.GroupNorm(4, b) for b in sizes[1:])
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, LOFTS))

    def forward(self, track):
        x = track
        for conv, norm in zip(self.short, self.norms, strict=True):
            x = F.gelu(norm(conv(x)))
        return self.out(self.body(x.transpose(1, 2)).mean(1))


def run_epoch(model, loader, optimizer, schedule):
    model.train()
    total = torch.zeros(())
    for track, loft in loader:
        loss = F.cross_entropy(model(track), loft, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return total.item() / len(loader)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = sum((model(track).argmax(1) == loft).sum() for track, loft in loader)
    return right.item() / len(loader.dataset)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--length", type=int, default=draw("length", 384, 416))
    p.add_argument("--width", type=int, default=48)
    p.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    torch.manual_seed(35)
    rng = random.Random(1)
    records = [flight(rng, rng.randrange(LOFTS), args.length) for _ in range(50 * args.batch)]
    train, test = records[: 44 * args.batch], records[44 * args.batch :]
    loader = DataLoader(Flights(train), args.batch, shuffle=True, drop_last=True)
    check = DataLoader(Flights(test), 2 * args.batch)
    model = FlightNet(args.width, args.dim, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        loss = run_epoch(model, loader, optimizer, schedule)
        print(f"epoch {epoch} loss {loss:.4f} right {validate(model, check):.3f}", flush=True)


if __name__ == "__main__":
    main()
