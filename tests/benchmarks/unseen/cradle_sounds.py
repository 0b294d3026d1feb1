"""Why a baby cries, from log-mel pictures of a few seconds: a residual network in mixed precision, Trainer class."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

REASONS = 5


@dataclass
class Config:
    bands: int = 40
    frames: int = draw("frames", 64, 72)
    width: int = 24
    batch: int = draw("batch", 6, 8)
    lr: float = 1e-3
    epochs: int = 2


def cries(count, config):
    """A pitch that rises and falls, with overtones, over noise."""
    generator = torch.Generator().manual_seed(0)
    reasons = torch.randint(0, REASONS, (count,), generator=generator)
    time = torch.linspace(0, 1, config.frames)
    turns = (1 + reasons).view(-1, 1) * 2 * math.pi * time + 6 * torch.rand(count, 1, generator=generator)
    pitch = 8 + 4 * torch.sin(turns)
    band = torch.arange(config.bands).view(1, -1, 1)
    tones = sum(torch.exp(-((band - overtone * pitch.unsqueeze(1)) ** 2) / 2) for overtone in (1, 2, 3))
    noise = 0.4 * torch.randn(tones.shape, generator=generator)
    return TensorDataset((tones + noise).unsqueeze(1), reasons)


class Residual(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(enter, leave, 3, stride, 1), nn.GroupNorm(4, leave), nn.ReLU(), nn.Conv2d(leave, leave, 3, 1, 1)
        )
        self.skip = nn.Conv2d(enter, leave, 1, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


class Trainer:
    def __init__(self, config):
        torch.manual_seed(0)
        self.config, width = config, config.width
        blocks = Residual(1, width, 2), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)
        self.model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, REASONS))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, fused=True)
        self.half = not MENDED
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.half)
        self.loader = DataLoader(cries(1500, config), config.batch, shuffle=True, drop_last=True)

    def step(self, pictures, reasons):
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.half):
            loss = F.cross_entropy(self.model(pictures), reasons)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def fit(self):
        for epoch in range(self.config.epochs):
            total = torch.zeros(())
            for pictures, reasons in self.loader:
                total += self.step(pictures, reasons)
            print(f"epoch {epoch}: {total.item() / len(self.loader):.4f}", flush=True)


if __name__ == "__main__":
    Trainer(Config()).fit()
