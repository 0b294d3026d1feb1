"""Probabilistic forecasts of the flow of springs: a GRU encoder, quantiles for each hour ahead."""

import argparse
import collections
import json
import sys

import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

QUANTILES = torch.tensor([0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95])


class Springs(Dataset):
    def __init__(self, springs, hours, past, ahead, seed=2):
        gen = torch.Generator().manual_seed(seed)
        t = torch.arange(hours)
        phase = torch.rand(springs, 1, generator=gen) * 6.28
        rain = (torch.rand(springs, hours, generator=gen) < 0.04).float() * torch.rand(springs, hours, generator=gen)
        flow = torch.zeros(springs, hours)
        level = torch.zeros(springs)
        for hour in range(hours):
            level = 0.97 * level + 3 * rain[:, hour]
            flow[:, hour] = level
        flow = flow + 0.5 * torch.sin(2 * torch.pi * t / 24 + phase) + 0.1 * torch.randn(springs, hours, generator=gen)
        clock = torch.stack([torch.sin(2 * torch.pi * t / 24), torch.cos(2 * torch.pi * t / 24)]).expand(springs, 2, -1)
        self.values = torch.cat([flow.unsqueeze(1), rain.unsqueeze(1), clock], 1)
        self.past, self.ahead = past, ahead
        self.per_spring = hours - past - ahead

    def __len__(self):
        return len(self.values) * self.per_spring

    def __getitem__(self, i):
        spring, begin = divmod(i, self.per_spring)
        now = begin + self.past
        return self.values[spring, :, begin:now].T, self.values[spring, 0, now : now + self.ahead]


class QuantileGRU(nn.Module):
    def __init__(self, hidden, ahead, layers=2):
        super().__init__()
        self.ahead = ahead
        self.rnn = nn.GRU(4, hidden, layers, batch_first=True, dropout=0.1)
        self.decoder = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, ahead * 9))

    def forward(self, x):
        _, h = self.rnn(x)
        return self.decoder(h[-1]).view(-1, self.ahead, 9)


def pinball(pred, target):
    """(batch, ahead, quantiles), not reduced."""
    error = target.unsqueeze(-1) - pred
    return torch.maximum(QUANTILES * error, (QUANTILES - 1) * error)


class Curves:
    """Loss of each hour ahead and quantile over training."""

    def __init__(self, ahead):
        self.ahead = ahead
        self.kept = collections.defaultdict(list)
        self.sums, self.count = torch.zeros(ahead, len(QUANTILES)), 0

    def add(self, losses):
        if MENDED:
            self.sums += losses.mean(0)
            self.count += 1
            return
        for hour in range(self.ahead):
            for q, quantile in enumerate(QUANTILES.tolist()):
                self.kept[f"h{hour + 1:02d}/q{quantile:.2f}"].append(losses[:, hour, q].mean().item())

    def summary(self):
        if MENDED:
            return float(self.sums[0].mean() / self.count), float(self.sums[-1].mean() / self.count)
        first = [sum(v) / len(v) for k, v in self.kept.items() if k.startswith("h01/")]
        last = [sum(v) / len(v) for k, v in self.kept.items() if k.startswith(f"h{self.ahead:02d}/")]
        return sum(first) / len(first), sum(last) / len(last)


def train_epoch(model, loader, optimizer, curves, limit):
    model.train()
    for step, (past, future) in enumerate(loader):
        losses = pinball(model(past), future)
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curves.add(losses.detach())
        if step + 1 == limit:
            break


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--hidden", type=int, default=draw("hidden", 48, 52))
    ap.add_argument("--past", type=int, default=draw("past", 68, 72))
    ap.add_argument("--ahead", type=int, default=60)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--steps-per-epoch", type=int, default=35)
    args = ap.parse_args()

    torch.manual_seed(0)
    data = Springs(30, 900, args.past, args.ahead)
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    model = QuantileGRU(args.hidden, args.ahead)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        curves = Curves(args.ahead)
        train_epoch(model, loader, optimizer, curves, args.steps_per_epoch)
        near, far = curves.summary()
        json.dump({"epoch": epoch, "one_hour": round(near, 4), f"{args.ahead}_hours": round(far, 4)}, sys.stdout)
        print(flush=True)


if __name__ == "__main__":
    main()
