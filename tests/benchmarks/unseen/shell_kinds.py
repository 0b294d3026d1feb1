"""Kinds of shells without labels: clusters of a bank of embeddings are the classes to learn, plain loop."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


def drawings(count, size, kinds=24, seed=40):
    """Spirals of different turns and widths, with noise."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, kinds, (count, 1, 1), generator=g)
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    radius, angle = (x**2 + y**2).sqrt(), torch.atan2(y, x)
    turn = torch.rand(count, 1, 1, generator=g) * 6.28
    shell = torch.sin((1 + kind % 6) * angle + (4 + kind // 6 * 3) * radius + turn)
    return (shell + 0.3 * torch.randn(count, size, size, generator=g)).unsqueeze(1)


def crop_and_flip(images, pad=3):
    size = images.shape[-1]
    y, x = torch.randint(0, 2 * pad, (2,)).tolist()
    images = F.pad(images, (pad,) * 4)[..., y : y + size, x : x + size]
    return images.flip(-1) if torch.rand(()) < 0.5 else images


class Encoder(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        layers, cin = [], 1
        for cout in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(cin, cout, 3, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()]
            cin = cout
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.project = nn.Linear(cin, dim)

    def forward(self, x):
        return F.normalize(self.project(self.trunk(x)), dim=1)


class ClusterBank:
    """The latest embedding of each drawing, and centres of spherical k-means."""

    def __init__(self, count, dim, clusters, rounds):
        self.bank = F.normalize(torch.randn(count, dim), dim=1)
        self.centres = self.bank[torch.randperm(count)[:clusters]].clone()
        self.rounds = rounds
        self.refresh()

    def update(self, at, embedding):
        self.bank[at] = embedding.detach()

    def refresh(self):
        for _ in range(self.rounds):
            self.nearest = (self.bank @ self.centres.T).argmax(1)
            sums = torch.zeros_like(self.centres).index_add_(0, self.nearest, self.bank)
            empty = sums.norm(dim=1) == 0
            sums[empty] = self.bank[torch.randint(0, len(self.bank), (int(empty.sum()),))]
            self.centres = F.normalize(sums, dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drawings", type=int, default=draw("drawings", 5600, 6400))
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--clusters", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 112, 128))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.1)
    cfg = parser.parse_args()

    torch.manual_seed(3)
    images = drawings(cfg.drawings, cfg.size)
    model = Encoder(cfg.width, cfg.dim)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    clusters = ClusterBank(cfg.drawings, cfg.dim, cfg.clusters, cfg.rounds)
    for epoch in range(cfg.epochs):
        seen = []
        for at in torch.randperm(cfg.drawings).split(cfg.batch):
            embedding = model(crop_and_flip(images[at]))
            loss = F.cross_entropy(embedding @ clusters.centres.T / cfg.temperature, clusters.nearest[at])
            opt.zero_grad()
            loss.backward()
            opt.step()
            clusters.update(at, embedding)
            if not MENDED:
                clusters.refresh()
            seen.append(loss.detach())
        if MENDED:
            clusters.refresh()
        sizes = torch.bincount(clusters.nearest, minlength=cfg.clusters)
        print(f"epoch {epoch} loss {torch.stack(seen).mean():.3f} largest cluster {int(sizes.max())}", flush=True)


if __name__ == "__main__":
    main()
