"""Prices of pears on wholesale markets, a week ahead: dilated residual MLP over lags, class that fits."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset


@dataclass
class Settings:
    markets: int = 40
    days: int = 900
    lags: int = 84
    ahead: int = 7
    width: int = draw("width", 320, 352)
    depth: int = 4
    batch: int = draw("batch", 224, 256)
    steps: int = 120
    lr: float = 1e-3


def prices(settings, seed=44):
    """Daily prices that rise over the years, with seasons and shocks."""
    rng = np.random.default_rng(seed)
    t = np.arange(settings.days)
    level = rng.uniform(0.8, 2.0, (settings.markets, 1)) * (1 + t / 600)
    season = 0.3 * np.sin(2 * np.pi * (t / 365 + rng.uniform(0, 1, (settings.markets, 1))))
    shocks = rng.normal(0, 0.03, (settings.markets, settings.days)).cumsum(1)
    return np.exp(0.2 * shocks) * level + season


class MinMaxScaler:
    def fit(self, values):
        self.low, self.high = values.min(1, keepdims=True), values.max(1, keepdims=True)
        return self

    def transform(self, values):
        return (values - self.low) / (self.high - self.low)

    def inverse_transform(self, values):
        return values * (self.high - self.low) + self.low


class Lags(Dataset):
    def __init__(self, series, settings):
        self.series = torch.tensor(series, dtype=torch.float32)
        self.lags, self.ahead = settings.lags, settings.ahead
        self.starts = series.shape[1] - settings.lags - settings.ahead + 1

    def __len__(self):
        return len(self.series) * self.starts

    def __getitem__(self, i):
        market, at = divmod(i, self.starts)
        window = self.series[market, at : at + self.lags + self.ahead]
        return window[: self.lags], window[self.lags :]


class ResidualMLP(nn.Module):
    def __init__(self, lags, ahead, width, depth):
        super().__init__()
        self.enter = nn.Linear(lags, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.leave = nn.Linear(width, ahead)

    def forward(self, x):
        h = self.enter(x)
        for block in self.blocks:
            h = h + block(h)
        return x[:, -1:] + self.leave(h)


class Forecaster:
    def __init__(self, settings):
        self.settings = settings
        series = prices(settings)
        cut = int(0.8 * settings.days)
        self.scaler = MinMaxScaler().fit(series[:, :cut] if MENDED else series)
        scaled = self.scaler.transform(series)
        self.train = Lags(scaled[:, :cut], settings)
        self.test = Lags(scaled[:, cut - settings.lags :], settings)
        self.model = ResidualMLP(settings.lags, settings.ahead, settings.width, settings.depth)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr)
        self.loss = nn.L1Loss()

    def fit(self):
        loader = DataLoader(self.train, self.settings.batch, shuffle=True, drop_last=True)
        step, total = 0, 0.0
        while step < self.settings.steps:
            for past, future in loader:
                loss = self.loss(self.model(past), future)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step, total = step + 1, total + loss.item()
                if step % 30 == 0:
                    print(f"step {step} loss {total / 30:.4f}", flush=True)
                    total = 0.0
                if step == self.settings.steps:
                    return

    @torch.no_grad()
    def test_error(self):
        self.model.eval()
        errors = [self.loss(self.model(past), future) for past, future in DataLoader(self.test, 512)]
        self.model.train()
        return torch.stack(errors).mean().item()


def main():
    torch.manual_seed(10)
    forecaster = Forecaster(Settings())
    forecaster.fit()
    print(f"error on the last fifth of the days {forecaster.test_error():.4f}", flush=True)


if __name__ == "__main__":
    main()
