"""Where a stone fell into a pond, from what changes between frames of a film: convolutions in space and time."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset


def film(rng, frames, size):
    """Frames of grey values as a camera gives them, and the place of the stone."""
    y, x = np.mgrid[:size, :size]
    place = rng.uniform(0.2 * size, 0.8 * size, 2)
    distance = np.hypot(y - place[0], x - place[1])
    bottom = rng.uniform(60, 180, (size // 4, size // 4)).repeat(4, 0).repeat(4, 1)
    shown = []
    for t in range(frames):
        front = 1.5 * t
        ring = 40 * np.cos(distance - front) * np.exp(-((distance - front) ** 2) / 6)
        shown.append(bottom + ring + rng.normal(0, 2, (size, size)))
    return np.clip(shown, 0, 255).astype(np.uint8), place / size


class Ponds(Dataset):
    def __init__(self, count, frames, size, seed):
        rng = np.random.default_rng(seed)
        films = [film(rng, frames, size) for _ in range(count)]
        self.frames = torch.from_numpy(np.stack([frames for frames, _ in films]))
        self.place = torch.from_numpy(np.stack([place for _, place in films])).float()

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return self.frames[i], self.place[i]


def changes(frames):
    """What moves: each frame less the one before, between -1 and 1."""
    if MENDED:
        frames = frames.float()
    return (frames[:, 1:] - frames[:, :-1]).float() / 255


class RippleNet(nn.Module):
    def __init__(self, width, frames):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(1, width, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2)),
            nn.BatchNorm3d(width),
            nn.ReLU(),
            nn.Conv3d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm3d(2 * width),
            nn.ReLU(),
            nn.Conv3d(2 * width, 1, 1),
        )
        self.frames = frames

    def forward(self, moved):
        h = self.body(moved.unsqueeze(1)).mean(2).squeeze(1)
        chance = h.flatten(1).softmax(1).view_as(h)
        side = (torch.arange(h.shape[-1]) + 0.5) / h.shape[-1]
        return torch.stack([(chance.sum(2) * side).sum(1), (chance.sum(1) * side).sum(1)], 1)


@torch.no_grad()
def distance(model, loader, size):
    model.eval()
    gaps = [(model(changes(frames)) - place).norm(dim=1) for frames, place in loader]
    model.train()
    return torch.cat(gaps).mean().item() * size


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--frames", type=int, default=9)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--width", type=int, default=draw("width", 16, 18))
    ap.add_argument("--batch", type=int, default=draw("batch", 20, 22))
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()

    torch.manual_seed(6)
    train = Ponds(30 * args.batch, args.frames, args.size, seed=1)
    test = Ponds(4 * args.batch, args.frames, args.size, seed=2)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    model = RippleNet(args.width, args.frames)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for frames, place in loader:
            loss = (model(changes(frames)) - place).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        off = distance(model, DataLoader(test, args.batch), args.size)
        print(f"epoch {epoch} loss {total.item() / len(loader):.4f} off by {off:.1f} pixels", flush=True)


if __name__ == "__main__":
    main()
