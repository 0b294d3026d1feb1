"""Recognise birds by their song, in half precision."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

BIRDS = 20


def songs(count, bands, frames):
    """Sweeps up and down; each bird has a speed and a first band."""
    generator = torch.Generator().manual_seed(13)
    birds = torch.randint(0, BIRDS, (count,), generator=generator)
    time = torch.arange(frames)
    middle = bands * (0.3 + 0.02 * birds.view(-1, 1)) + 6 * torch.sin(time * (0.1 + 0.03 * birds.view(-1, 1)))
    away = torch.arange(bands).view(1, bands, 1) - middle.unsqueeze(1)
    clean = torch.exp(-0.5 * away.square())
    return clean.transpose(1, 2) + 0.3 * torch.randn(count, frames, bands, generator=generator), birds


class Mixer(nn.Module):
    def __init__(self, frames, dim):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.time = nn.Sequential(nn.Linear(frames, 2 * frames), nn.GELU(), nn.Linear(2 * frames, frames))
        self.bands = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.time(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.bands(self.norms[1](x))


class Ornithologist(nn.Module):
    def __init__(self, bands, frames, dim, depth):
        super().__init__()
        self.enter = nn.Linear(bands, dim)
        self.mixers = nn.Sequential(*(Mixer(frames, dim) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, BIRDS)

    def forward(self, x):
        return self.head(self.norm(self.mixers(self.enter(x))).mean(1))


class Trainer:
    def __init__(self, model, loader, lr, epochs):
        self.model = model
        self.loader = loader
        self.epochs = epochs
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.02, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", enabled=MENDED)

    def train_epoch(self):
        total = torch.zeros(())
        for spectra, birds in self.loader:
            with torch.autocast("cpu", dtype=torch.float16):
                logits = self.model(spectra)
                loss = F.cross_entropy(logits, birds)
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            total += loss.detach()
        return total.item() / len(self.loader)

    def fit(self):
        for epoch in range(self.epochs):
            print(f"epoch {epoch}: {self.train_epoch():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--songs", type=int, default=1600)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 52, 56))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*songs(args.songs, 40, args.frames)), args.batch, shuffle=True, drop_last=True)
    model = Ornithologist(40, args.frames, args.dim, args.depth)
    Trainer(model, loader, args.lr, args.epochs).fit()


if __name__ == "__main__":
    main()
