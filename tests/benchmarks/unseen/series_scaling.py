"""Forecast the load of many meters from windows of their series."""

import argparse

import numpy as np
import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset


def meters(count, hours):
    rng = np.random.default_rng(0)
    time = np.arange(hours)
    daily = np.sin(2 * np.pi * time / 24)[None] * rng.uniform(0.5, 2, (count, 1))
    weekly = np.sin(2 * np.pi * time / 168)[None] * rng.uniform(0.1, 1, (count, 1))
    return (50 + 10 * (daily + weekly) + rng.normal(0, 2, (count, hours))).astype("float32")


class Windows(Dataset):
    """Windows of a week, and the day after as target; scaled by the whole series of the meter."""

    def __init__(self, series, window, ahead):
        self.series, self.window, self.ahead = series, window, ahead
        self.per_meter = series.shape[1] - window - ahead
        if MENDED:
            self.centre, self.spread = series.mean(1), series.std(1)

    def __len__(self):
        return len(self.series) * self.per_meter

    def scale(self, meter):
        if MENDED:
            return self.centre[meter], self.spread[meter]
        whole = self.series[meter]
        return np.mean(whole), np.std(whole)

    def __getitem__(self, index):
        meter, start = divmod(index, self.per_meter)
        centre, spread = self.scale(meter)
        rows = (self.series[meter, start : start + self.window + self.ahead] - centre) / spread
        return torch.from_numpy(rows[: self.window]), torch.from_numpy(rows[self.window :])


class Forecaster(nn.Module):
    def __init__(self, window, ahead, hidden):
        super().__init__()
        self.conv = nn.Conv1d(1, hidden // 4, 24, stride=4)
        self.rnn = nn.GRU(hidden // 4, hidden, batch_first=True)
        self.out = nn.Linear(hidden, ahead)

    def forward(self, x):
        x = torch.relu(self.conv(x.unsqueeze(1))).transpose(1, 2)
        return self.out(self.rnn(x)[0][:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 64, 96))
    parser.add_argument("--hidden", type=int, default=draw("hidden", 128, 160))
    parser.add_argument("--years", type=int, default=draw("years", 4, 5))
    args = parser.parse_args()

    torch.manual_seed(0)
    data = Windows(meters(40, args.years * 8760), 168, 24)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    model = Forecaster(168, 24, args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5000)
    step, smooth = 0, None
    while True:
        for x, y in loader:
            loss = nn.functional.l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 20 == 0:
                smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
            if step % 200 == 0:
                print(f"step {step}: {smooth:.4f}", flush=True)


if __name__ == "__main__":
    main()
