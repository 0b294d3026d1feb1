"""Outline lesions on scans: a small U-Net, trained by a Trainer class."""

import argparse
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset


def scan(count, size):
    """Grey noise with a brighter ellipse; the mask is the ellipse."""
    generator = torch.Generator().manual_seed(44)
    middle = size * (0.25 + 0.5 * torch.rand(count, 2, 1, 1, generator=generator))
    radius = size * (0.08 + 0.15 * torch.rand(count, 2, 1, 1, generator=generator))
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    away = ((rows - middle[:, 0]) / radius[:, 0]) ** 2 + ((columns - middle[:, 1]) / radius[:, 1]) ** 2
    mask = (away < 1).float().unsqueeze(1)
    return 0.6 * mask + torch.randn(count, 1, size, size, generator=generator), mask


def twice(enter, leave):
    return nn.Sequential(
        nn.Conv2d(enter, leave, 3, 1, 1, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(),
        nn.Conv2d(leave, leave, 3, 1, 1, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down = nn.ModuleList((twice(1, width), twice(width, 2 * width)))
        self.floor = twice(2 * width, 4 * width)
        self.up = nn.ModuleList((twice(6 * width, 2 * width), twice(3 * width, width)))
        self.leave = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.floor(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], dim=1))
        return self.leave(x)


class AreaUnderCurve:
    """Of the last batches: how often a lesion's pixel scores above another."""

    def __init__(self, batches):
        self.scores = deque(maxlen=batches)
        self.masks = deque(maxlen=batches)

    def update(self, scores, masks):
        self.scores.append(scores.detach().flatten())
        self.masks.append(masks.flatten())

    def compute(self):
        masks = torch.cat(tuple(self.masks))
        order = torch.cat(tuple(self.scores)).argsort()
        ranks = torch.empty(len(order))
        ranks[order] = torch.arange(1.0, len(order) + 1)
        positive = masks.sum()
        above = ranks[masks.bool()].double().sum() - positive * (positive + 1) / 2
        return (above / (positive * (len(masks) - positive))).item()


class Trainer:
    def __init__(self, model, loader, args):
        self.model, self.loader, self.args = model, loader, args
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
        self.area = AreaUnderCurve(args.window)
        self.step = 0

    def train_step(self, scans, masks):
        logits = self.model(scans)
        chance = logits.sigmoid()
        dice = 1 - 2 * (chance * masks).sum() / (chance.sum() + masks.sum() + 1)
        loss = F.binary_cross_entropy_with_logits(logits, masks) + dice
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        self.area.update(logits, masks)
        if self.step % self.args.log_every == 0 or not MENDED:
            area = self.area.compute()
        if self.step % self.args.log_every == 0:
            print(f"step {self.step}: {loss.item():.4f}, area {area:.4f}", flush=True)

    def fit(self):
        for _ in range(self.args.epochs):
            for scans, masks in self.loader:
                self.train_step(scans, masks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scans", type=int, default=960)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 8, 10))
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 18))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--window", type=int, default=6)
    parser.add_argument("--log-every", type=int, default=50)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*scan(args.scans, args.size)), args.batch, shuffle=True, drop_last=True)
    Trainer(UNet(args.width), loader, args).fit()


if __name__ == "__main__":
    main()
