"""Age and site of a tree from its rings with Accelerate: a convolutional network over series of widths."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

SITES = 10


def grow(trees, years, channels, seed):
    """Widths, densities and the like of rings; a site has its own swing."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, SITES, trees)
    age = rng.uniform(0, 1, trees)
    t = np.arange(years)
    swing = np.sin(2 * np.pi * t / (5 + site[:, None]))[:, None, :]
    decline = np.exp(-3 * age[:, None] * t / years)[:, None, :]
    cores = 3 + decline * (2 + swing) + rng.normal(0, 0.5, (trees, channels, years))
    return cores.astype(np.float32), site, age.astype(np.float32)


class TreeRings(Dataset):
    def __init__(self, trees, years, channels, seed, reference=None):
        self.cores, self.site, self.age = grow(trees, years, channels, seed)
        self.reference = self.cores if reference is None else reference.cores
        if MENDED:
            self.scale = self.reference.mean((0, 2)), self.reference.std((0, 2))

    def standardise(self, core):
        if MENDED:
            mean, std = self.scale
        else:
            mean, std = self.reference.mean((0, 2)), self.reference.std((0, 2))
        return (core - mean[:, None]) / (std[:, None] + 1e-6)

    def __len__(self):
        return len(self.cores)

    def __getitem__(self, i):
        return torch.from_numpy(self.standardise(self.cores[i])), int(self.site[i]), self.age[i]


class RingNet(nn.Module):
    def __init__(self, channels, width, depth):
        super().__init__()
        layers, cin = [], channels
        for i in range(depth):
            layers += [nn.Conv1d(cin, width, 5, padding=2 * 2**i, dilation=2**i), nn.GroupNorm(4, width), nn.SiLU()]
            cin = width
        self.body = nn.Sequential(*layers)
        self.site, self.age = nn.Linear(width, SITES), nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x).mean(2)
        return self.site(h), self.age(h).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=int, default=draw("trees", 900, 960))
    parser.add_argument("--years", type=int, default=128)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 18, 20))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(3)
    train = TreeRings(args.trees, args.years, args.channels, seed=1)
    test = TreeRings(48, args.years, args.channels, seed=2, reference=train)
    train_loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    test_loader = DataLoader(test, args.batch)
    model = RingNet(args.channels, args.width, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
    for epoch in range(args.epochs):
        model.train()
        for core, site, age in train_loader:
            by_site, by_age = model(core)
            loss = F.cross_entropy(by_site, site) + F.smooth_l1_loss(by_age, age)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        right, count = 0, 0
        with torch.no_grad():
            for core, site, _ in test_loader:
                found, site = accelerator.gather_for_metrics((model(core)[0].argmax(1), site))
                right, count = right + int((found == site).sum()), count + len(site)
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f} right {right / count:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
