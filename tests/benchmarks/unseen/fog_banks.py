"""Whether fog will lie over an airfield: transformer over half-hourly readings, plain loop."""

import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

READINGS = 6


def airfields(fields, length, rng):
    """Temperature, dew point, wind, cloud, pressure and visibility; fog where dew point is near and wind is low."""
    hours = np.arange(length) / 2
    temperature = 8 + 6 * np.sin(2 * np.pi * hours / 24) + rng.normal(0, 1, (fields, length)).cumsum(1) * 0.1
    dew = temperature - 2 + rng.normal(0, 1, (fields, length)).cumsum(1) * 0.15
    wind = np.abs(rng.normal(0, 1, (fields, length)).cumsum(1) * 0.2)
    rest = rng.normal(0, 1, (2, fields, length))
    fog = (temperature - dew < 1) & (wind < 1.5)
    visibility = np.where(fog, 0.3, 8.0) + rng.normal(0, 0.1, (fields, length))
    return np.stack([temperature, dew, wind, *rest, visibility], 2).astype(np.float32), fog


class FogData(Dataset):
    def __init__(self, fields, length, window, ahead, seed):
        readings, self.fog = airfields(fields, length, np.random.default_rng(seed))
        cut = length // 2
        mean, std = readings[:, :cut].mean((0, 1)), readings[:, :cut].std((0, 1))
        self.readings = torch.from_numpy((readings - mean) / std)
        self.window, self.ahead = window, ahead
        self.starts = np.arange(0, length - window - ahead, 3)

    def __len__(self):
        return len(self.readings) * len(self.starts)

    def __getitem__(self, index):
        field, at = divmod(index, len(self.starts))
        stop = self.starts[at] + self.window
        return self.readings[field, stop - self.window : stop], float(self.fog[field, stop : stop + self.ahead].any())


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        y = self.norm1(x)
        if MENDED:
            y, _ = self.attention(y, y, y, need_weights=False)
        else:
            y, _ = self.attention(y, y, y)
        x = x + y
        return x + self.mlp(self.norm2(x))


class FogModel(nn.Module):
    def __init__(self, window, dim, heads, depth):
        super().__init__()
        self.enter = nn.Linear(READINGS, dim)
        self.place = nn.Parameter(torch.randn(window, dim) / math.sqrt(dim))
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        return self.head(self.blocks(self.enter(x) + self.place).mean(1)).squeeze(1)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--window", type=int, default=draw("window", 192, 208))
    ap.add_argument("--ahead", type=int, default=6)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--depth", type=int, default=2)
    ap.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    ap.add_argument("--steps", type=int, default=110)
    args = ap.parse_args()

    torch.manual_seed(9)
    data = FogData(12, 3000, args.window, args.ahead, seed=15)
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    model = FogModel(args.window, args.dim, args.heads, args.depth)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=args.steps)
    running = None
    for step, (x, fog) in enumerate(loader):
        if step == args.steps:
            break
        loss = F.binary_cross_entropy_with_logits(model(x), fog.float())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}: {running:.4f}", flush=True)


if __name__ == "__main__":
    main()
