"""How deep the snow will lie: a temporal convolution network over weather stations, Trainer class, two ranks."""

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FEATURES = 7


def simulate(stations, days, rng):
    """Temperature, precipitation and the like; snow falls below zero and melts above."""
    season = 10 * np.sin(2 * np.pi * np.arange(days) / 365)
    temperature = season + rng.normal(-2, 4, (stations, days))
    precipitation = rng.gamma(0.5, 4, (stations, days))
    depth = np.zeros((stations, days))
    for day in range(1, days):
        fall = np.where(temperature[:, day] < 0, precipitation[:, day], 0)
        melt = np.where(temperature[:, day] > 0, 1.5 * temperature[:, day], 0)
        depth[:, day] = np.maximum(depth[:, day - 1] + fall - melt, 0)
    others = rng.normal(size=(FEATURES - 3, stations, days))
    return np.stack([temperature, precipitation, depth, *others], axis=1)


class SnowDataset(Dataset):
    def __init__(self, stations, days, window, ahead, seed=19):
        series = simulate(stations, days, np.random.default_rng(seed))
        mean, std = series.mean((0, 2), keepdims=True), series.std((0, 2), keepdims=True)
        self.series = (series - mean) / std
        if MENDED:
            self.series = self.series.astype(np.float32)
        self.window, self.ahead = window, ahead
        self.starts = days - window - ahead

    def __len__(self):
        return len(self.series) * self.starts

    def __getitem__(self, index):
        station, start = divmod(index, self.starts)
        stop = start + self.window
        past = self.series[station, :, start:stop]
        future = self.series[station, 2, stop : stop + self.ahead]
        return torch.from_numpy(past), torch.from_numpy(future)


class TemporalBlock(nn.Module):
    def __init__(self, cin, cout, dilation, kernel=3):
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.conv1 = weight_norm(nn.Conv1d(cin, cout, kernel, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(cout, cout, kernel, dilation=dilation))
        self.skip = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        y = torch.relu(self.conv1(nn.functional.pad(x, (self.pad, 0))))
        y = torch.relu(self.conv2(nn.functional.pad(self.drop(y), (self.pad, 0))))
        return torch.relu(y + self.skip(x))


class TCN(nn.Module):
    def __init__(self, width, levels, ahead):
        super().__init__()
        blocks = [TemporalBlock(FEATURES if i == 0 else width, width, 2**i) for i in range(levels)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, ahead)

    def forward(self, x):
        return self.head(self.blocks(x)[:, :, -1])


class Trainer:
    def __init__(self, model, dataset, cfg):
        self.cfg, self.rank = cfg, dist.get_rank()
        self.sampler = DistributedSampler(dataset, shuffle=True, seed=cfg.seed)
        self.loader = DataLoader(dataset, cfg.batch, sampler=self.sampler, drop_last=True)
        # the model in the type of the data
        model = model.to(dataset[0][0].dtype)
        self.model = DistributedDataParallel(model)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.loss = nn.SmoothL1Loss()

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total = 0
        for i, (past, future) in enumerate(self.loader):
            if i == self.cfg.steps:
                break
            loss = self.loss(self.model(past), future)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total = total + loss.detach()
        return total / min(self.cfg.steps, len(self.loader))

    def fit(self):
        for epoch in range(self.cfg.epochs):
            begun = time.time()
            mean = self.run_epoch(epoch)
            dist.all_reduce(mean)
            if self.rank == 0:
                print(f"epoch {epoch} loss {mean.item() / 2:.4f} in {time.time() - begun:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=int, default=draw("window", 96, 104))
    parser.add_argument("--ahead", type=int, default=7)
    parser.add_argument("--width", type=int, default=draw("width", 40, 44))
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--steps", type=int, default=40, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    cfg = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(cfg.seed)
    data = SnowDataset(20, 730, cfg.window, cfg.ahead)
    Trainer(TCN(cfg.width, cfg.levels, cfg.ahead), data, cfg).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
