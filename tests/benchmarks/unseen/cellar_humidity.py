"""Humidity of wine cellars in the next hours: a GRU that carries its state along the series, plain loop."""

import argparse
import math

import torch
import torch.nn as nn
from drawn import draw


def cellars(count, hours, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(hours).float()
    season = torch.sin(2 * math.pi * t / 2000 + torch.rand(count, 1, generator=g) * 6)
    day = 0.3 * torch.sin(2 * math.pi * t / 24 + torch.rand(count, 1, generator=g) * 6)
    drift = (0.03 * torch.randn(count, hours, generator=g)).cumsum(1)
    door = (torch.rand(count, hours, generator=g) < 0.01).float()
    humidity = 70 + 6 * season + 3 * day + drift - 4 * door + 0.3 * torch.randn(count, hours, generator=g)
    temperature = 12 + 2 * season + 0.1 * torch.randn(count, hours, generator=g)
    return torch.stack([humidity, temperature, door], -1)


class Scaler:
    """Mean and deviation of the hours that are learned from."""

    def __init__(self, known):
        self.mean, self.std = known.mean((0, 1)), known.std((0, 1))

    def __call__(self, x):
        return (x - self.mean) / self.std

    def percent(self, error):
        return error * self.std[0].item()


class Forecaster(nn.Module):
    def __init__(self, hidden, ahead):
        super().__init__()
        self.first = nn.Linear(3, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, ahead)

    def forward(self, x, state=None):
        h, state = self.gru(torch.tanh(self.first(x)), state)
        return self.out(h), state


def pieces(series, length, ahead):
    """Pieces in the order of time, with what comes after each hour."""
    following = series[:, 1:, 0].unfold(1, ahead, 1)
    for start in range(0, following.shape[1] - length + 1, length):
        yield series[:, start : start + length], following[:, start : start + length]


@torch.no_grad()
def error(model, series, length, ahead):
    model.eval()
    state, gaps = None, []
    for x, following in pieces(series, length, ahead):
        guess, state = model(x, state)
        gaps.append((guess - following).abs().mean())
    model.train()
    return torch.stack(gaps).mean().item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--cellars", type=int, default=draw("cellars", 24, 28))
    p.add_argument("--hours", type=int, default=2600)
    p.add_argument("--piece", type=int, default=60)
    p.add_argument("--ahead", type=int, default=6)
    p.add_argument("--hidden", type=int, default=draw("hidden", 64, 72))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    torch.manual_seed(4)
    series = cellars(args.cellars, args.hours, seed=11)
    cut = args.hours * 85 // 100
    scale = Scaler(series[:, :cut])
    train, test = scale(series[:, :cut]), scale(series[:, cut:])
    model = Forecaster(args.hidden, args.ahead)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for epoch in range(args.epochs):
        state, losses = None, []
        for x, following in pieces(train, args.piece, args.ahead):
            guess, state = model(x, state)
            state = state.detach()
            loss = nn.functional.smooth_l1_loss(guess, following)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        held_out = error(model, test, args.piece, args.ahead)
        schedule.step(held_out)
        told = f"loss {torch.stack(losses).mean().item():.4f} held out {scale.percent(held_out):.2f} %"
        print(f"epoch {epoch} {len(losses)} pieces {told}", flush=True)


if __name__ == "__main__":
    main()
