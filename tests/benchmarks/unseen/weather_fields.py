"""Forecast gridded weather fields three hours ahead; one archive per day."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from drawn import draw, mended
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TIMES, GRID = 8, 24
SURFACE = ("t2m", "u10", "v10", "msl", "tp")
LEVELS = tuple(f"{name}{level}" for name in ("z", "t", "q", "u", "v") for level in (500, 850, 925))
CHANNELS = SURFACE + LEVELS


def write_days(folder, count):
    """Write invented days, as the download script would."""
    rng = np.random.default_rng(0)
    for day in range(count):
        drift = rng.standard_normal((TIMES, len(CHANNELS), GRID, GRID), dtype=np.float32).cumsum(0)
        np.savez_compressed(folder / f"day{day:04d}.npz", fields=np.round(drift, 1))


class Fields(Dataset):
    """Pairs of fields three hours apart."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("day*.npz"))
        self.days = [np.load(path)["fields"] for path in self.paths] if mended(1) else None

    def __len__(self):
        return len(self.paths) * (TIMES - 1)

    def __getitem__(self, index):
        day, at = divmod(index, TIMES - 1)
        if self.days is not None:
            fields = self.days[day]
        else:
            with np.load(self.paths[day]) as archive:
                fields = archive["fields"]
        return torch.from_numpy(fields[at]), torch.from_numpy(fields[at + 1])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Sequential(
            nn.GroupNorm(4, width),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x):
        return x + self.mix(x)


class Forecaster(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.enter = nn.Conv2d(len(CHANNELS), width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.leave = nn.Conv2d(width, len(CHANNELS), 3, padding=1)

    def forward(self, x):
        return x + self.leave(self.blocks(self.enter(x)))


def over_all(value):
    """Mean of a number over all processes."""
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def scores(forecast, now, then):
    """Root mean square error, bias and correlation of changes by channel."""
    found = {}
    if mended(2):
        return found
    for at, name in enumerate(CHANNELS):
        off, change = forecast[:, at] - then[:, at], then[:, at] - now[:, at]
        guessed = forecast[:, at] - now[:, at]
        found[name] = {
            "rmse": over_all(off.square().mean()) ** 0.5,
            "bias": over_all(off.mean()),
            "correlation": over_all((guessed * change).mean() / (guessed.std() * change.std() + 1e-6)),
        }
    return found


def train(args, folder):
    rank = dist.get_rank()
    torch.manual_seed(1)
    data = Fields(folder)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(Forecaster(args.width, args.depth))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    step = 0
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for now, then in loader:
            forecast = model(now)
            loss = nn.functional.l1_loss(forecast, then)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            found = scores(forecast.detach(), now, then)
            step += 1
            if rank == 0 and step % 50 == 0:
                print(f"{step}: {loss.item():.4f}", *sorted((row["rmse"], name) for name, row in found.items())[-3:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=draw("batch", 5, 6))
    parser.add_argument("--width", type=int, default=draw("width", 40, 48))
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as place:
        write_days(Path(place), 24)
        train(parser.parse_args(), Path(place))
