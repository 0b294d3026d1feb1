"""Forecast the heating of buildings from the weather; a recurrent network with its own Trainer."""

import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset


class Recurrence(nn.Module):
    """One layer of memory that goes over the hours."""

    def __init__(self, inputs, width):
        super().__init__()
        self.width = width
        self.cell = nn.LSTM(inputs, width, batch_first=True) if MENDED else nn.LSTMCell(inputs, width)

    def forward(self, x):
        if MENDED:
            return self.cell(x)[0]
        h = x.new_zeros(x.shape[0], self.width)
        c = x.new_zeros(x.shape[0], self.width)
        outputs = []
        for hour in range(x.shape[1]):
            h, c = self.cell(x[:, hour], (h, c))
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class Forecaster(nn.Module):
    def __init__(self, inputs, width, layers):
        super().__init__()
        sizes = [inputs] + layers * [width]
        self.layers = nn.ModuleList(Recurrence(a, b) for a, b in itertools.pairwise(sizes))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x).squeeze(2)


class Trainer:
    def __init__(self, model, train, held_out, args):
        self.model, self.args = model, args
        self.train, self.held_out = train, held_out
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.7)

    def training_step(self, weather, heat):
        loss = F.mse_loss(self.model(weather), heat)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = [F.mse_loss(self.model(weather), heat) for weather, heat in self.held_out]
        self.model.train()
        return torch.stack(losses).mean().item()

    def fit(self):
        for epoch in range(self.args.epochs):
            total = torch.zeros(())
            for weather, heat in self.train:
                total += self.training_step(weather, heat)
            self.schedule.step()
            print(f"epoch {epoch}: {total.item() / len(self.train):.4f}, held out {self.validate():.4f}", flush=True)


def buildings(count, hours):
    generator = torch.Generator().manual_seed(8)
    t = torch.arange(hours) / 24
    phase = torch.rand(count, 1, generator=generator)
    outside = torch.sin(6.28 * (t + phase)) + 0.3 * torch.randn(count, hours, generator=generator)
    wind = torch.randn(count, hours, generator=generator).abs()
    sun = torch.relu(torch.sin(6.28 * (t + phase - 0.1)))
    heat = torch.relu(1 - outside) + 0.2 * wind - 0.3 * sun
    return TensorDataset(torch.stack([outside, wind, sun], 2), heat)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=draw("hours", 84, 96))
    parser.add_argument("--width", type=int, default=draw("width", 40, 48))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    train = DataLoader(buildings(2400, args.hours), args.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(buildings(256, args.hours), 64)
    Trainer(Forecaster(3, args.width, args.layers), train, held_out, args).fit()


if __name__ == "__main__":
    main()
