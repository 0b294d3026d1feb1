"""Forecast demand with a temporal convolution; all series stay in memory."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn


@dataclass
class Config:
    series: int = 400
    length: int = 1200
    window: int = draw("window", 96, 128)
    ahead: int = 12
    batch: int = draw("batch", 64, 80)
    width: int = draw("width", 32, 36)
    lr: float = 1e-3
    checks: int = 500


class Demand:
    def __init__(self, config):
        generator = torch.Generator().manual_seed(4)
        t = torch.arange(config.length)
        phase = torch.rand(config.series, 2, 1, generator=generator) * 6.28
        values = torch.sin(t / 24 * 6.28 + phase[:, 0]) + 0.5 * torch.sin(t / 168 * 6.28 + phase[:, 1])
        values = values + 0.2 * torch.randn(values.shape, generator=generator)
        level = values.mean(1, keepdim=True)
        self.values = (values - level) / values.std(1, keepdim=True)
        self.windows = self.values.unfold(1, config.window + config.ahead, 1)
        self.config = config
        self.edge = int(0.8 * self.windows.shape[1])

    def pick(self, first, last, count):
        rows = torch.randint(0, self.config.series, (count,))
        begins = torch.randint(first, last, (count,))
        return self.windows[rows, begins].split([self.config.window, self.config.ahead], 1)

    def train(self):
        return self.pick(0, self.edge - self.config.window - self.config.ahead, self.config.batch)

    def held_out(self):
        return self.pick(self.edge, self.windows.shape[1], 2 * self.config.batch)


class Causal(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, 2 * width, 3, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(F.glu(self.conv(F.pad(x, (self.pad, 0))), 1))


class TCN(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enter = nn.Conv1d(1, config.width, 1)
        self.layers = nn.Sequential(*(Causal(config.width, 2**i) for i in range(5)))
        self.head = nn.Linear(config.width, 3 * config.ahead)

    def forward(self, x):
        return self.head(self.layers(self.enter(x.unsqueeze(1)))[..., -1]).unflatten(1, (3, -1))


def pinball(guess, truth, quantiles):
    off = truth.unsqueeze(1) - guess
    return torch.maximum(quantiles * off, (quantiles - 1) * off).mean()


def main():
    config = Config()
    torch.manual_seed(0)
    data, model = Demand(config), TCN(config)
    quantiles = torch.tensor([0.1, 0.5, 0.9])[:, None]
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=10)
    held_out = [data.held_out() for _ in range(4)]
    total = torch.zeros(())
    for step in range(1, 1_000_001):
        x, y = data.train()
        loss = pinball(model(x), y, quantiles)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % config.checks == 0:
            model.eval()
            with torch.no_grad():
                checked = sum(pinball(model(x), y, quantiles).item() for x, y in held_out) / len(held_out)
            model.train()
            schedule.step(checked)
            print(f"{step}: {total.item() / config.checks:.4f}, held out {checked:.4f}", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()
