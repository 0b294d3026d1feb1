"""Blasts of a quarry or small earthquakes: wavelet pictures of seismograms, then convolutions."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

CLASSES = ["blast", "earthquake", "noise", "lorry"]


def seismograms(count, length, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(len(CLASSES), (count,), generator=g)
    t = torch.arange(length).float()
    start = 40 + 60 * torch.rand(count, 1, generator=g)
    rate = torch.tensor([0.35, 0.12, 0.0, 0.05])[label][:, None] * (0.8 + 0.4 * torch.rand(count, 1, generator=g))
    fall = torch.tensor([25.0, 90.0, 50.0, 200.0])[label][:, None]
    shape = torch.where(t > start, torch.exp(-(t - start).clamp(min=0) / fall), torch.zeros(()))
    wave = shape * torch.sin(rate * (t - start)) + 0.25 * torch.randn(count, length, generator=g)
    return wave.unsqueeze(1), label


def morlet(scale, length, omega=5.0):
    """Real and imaginary part of one wavelet."""
    t = (torch.arange(length) - length // 2) / scale
    bell = torch.exp(-0.5 * t**2) / math.sqrt(scale)
    bell = bell - bell.mean()
    return bell * torch.cos(omega * t), bell * torch.sin(omega * t)


class Scalogram(nn.Module):
    def __init__(self, scales, length, stride):
        super().__init__()
        self.scales = [3.0 * 2 ** (at / 12) for at in range(scales)]
        self.length, self.stride = length, stride
        if MENDED:
            self.register_buffer("bank", self.wavelets(), persistent=False)

    def wavelets(self):
        rows = []
        for scale in self.scales:
            for shift in (0.8, 1.0, 1.25):
                real, imag = morlet(scale, self.length, 5.0 * shift)
                norm = torch.sqrt((real**2 + imag**2).sum())
                rows += [real / norm, imag / norm]
        return torch.stack(rows).unsqueeze(1)

    def forward(self, wave):
        bank = self.bank if MENDED else self.wavelets()
        parts = F.conv1d(wave, bank, stride=self.stride, padding=self.length // 2)
        power = parts.unflatten(1, (len(self.scales), 3, 2)).square().sum(3).mean(2)
        return torch.log1p(power).unsqueeze(1)


class BlastNet(nn.Module):
    def __init__(self, scales, width):
        super().__init__()
        self.picture = Scalogram(scales, 97, 4)
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, len(CLASSES)),
        )

    def forward(self, wave):
        return self.body(self.picture(wave))


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        right = [(model(wave).argmax(1) == label).float() for wave, label in loader]
    model.train()
    return torch.cat(right).mean().item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--scales", type=int, default=draw("scales", 44, 48, 52))
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--width", type=int, default=draw("width", 16, 20))
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    torch.manual_seed(5)
    train = TensorDataset(*seismograms(40 * args.batch, args.length, seed=1))
    test = TensorDataset(*seismograms(6 * args.batch, args.length, seed=2))
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    check = DataLoader(test, 2 * args.batch)
    model = BlastNet(args.scales, args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for wave, label in loader:
            loss = F.cross_entropy(model(wave), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch} loss {total.item() / len(loader):.4f} right {evaluate(model, check):.3f}", flush=True)


if __name__ == "__main__":
    main()
