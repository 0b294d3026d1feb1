"""Forecast the level of the tide an hour ahead from the last days, wind and pressure: a GRU."""

import argparse
import math

import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Harbour(Dataset):
    """Windows of a long record; what follows each window is to be found."""

    def __init__(self, hours, window, seed):
        generator = torch.Generator().manual_seed(seed)
        t = torch.arange(hours)
        moon, sun = torch.sin(2 * math.pi * t / 12.42), 0.4 * torch.sin(2 * math.pi * t / 12)
        weather = torch.randn(hours, 2, generator=generator).cumsum(0)
        weather = weather - weather.roll(48, 0)
        self.level = moon + sun + 0.02 * weather[:, 0] + 0.05 * torch.randn(hours, generator=generator)
        self.record = torch.cat([self.level[:, None], weather / 7], 1)
        self.window = window

    def __len__(self):
        return len(self.level) - self.window

    def __getitem__(self, index):
        end = index + self.window
        return self.record[index:end], self.level[end]


class Tide(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.recurrent = nn.GRU(3, width, depth, batch_first=True, dropout=0.1)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, record):
        _, state = self.recurrent(record)
        level = self.head(state[-1])
        return level.squeeze(-1) if MENDED else level


def squared_error(found, wanted):
    return ((found - wanted) ** 2).mean()


@torch.no_grad()
def held_out_error(model, loader):
    model.eval()
    total = sum(squared_error(model(record), level) * len(level) for record, level in loader)
    model.train()
    return (total / len(loader.dataset)).sqrt().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=int, default=72)
    parser.add_argument("--width", type=int, default=draw("width", 64, 72))
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--clip", type=float, default=1.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    train = DataLoader(Harbour(6000, args.window, 1), args.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(Harbour(600, args.window, 2), 2 * args.batch)
    model = Tide(args.width, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train))
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for record, level in train:
            loss = squared_error(model(record), level)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            schedule.step()
            total += loss.detach()
        error = held_out_error(model, held_out)
        print(f"epoch {epoch}: {total.item() / len(train):.4f}, held out {error:.4f} m", flush=True)


if __name__ == "__main__":
    main()
