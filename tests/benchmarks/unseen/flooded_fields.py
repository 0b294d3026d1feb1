"""Which fields are flooded, from pictures of a satellite: pyramid of features with a light head, plain loop."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

BANDS, KINDS = 4, 8


class Tiles(Dataset):
    def __init__(self, count, size, seed):
        self.count, self.size, self.seed = count, size, seed
        self.colours = torch.randn(KINDS, BANDS, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index)
        coarse = torch.randn(1, KINDS, 6, 6, generator=generator)
        kinds = F.interpolate(coarse, size=self.size, mode="bilinear").argmax(1).squeeze(0)
        noise = torch.randn(BANDS, self.size, self.size, generator=generator)
        return self.colours[kinds].permute(2, 0, 1) + noise, kinds


def down(enter, leave):
    return nn.Sequential(nn.Conv2d(enter, leave, 3, 2, 1), nn.GroupNorm(8, leave), nn.ReLU())


class Pyramid(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.stages = nn.ModuleList(
            [nn.Sequential(down(BANDS, width), down(width, width)), down(width, 2 * width), down(2 * width, 4 * width)]
        )
        self.sides = nn.ModuleList(nn.Conv2d(times * width, dim, 1) for times in (1, 2, 4))
        self.smooth = nn.Conv2d(dim, dim, 3, 1, 1)
        self.classify = nn.Conv2d(dim, KINDS, 1)

    def features(self, x):
        found = []
        for stage, side in zip(self.stages, self.sides, strict=True):
            x = stage(x)
            found.append(side(x))
        total = found.pop()
        while found:
            finer = found.pop()
            total = finer + F.interpolate(total, size=finer.shape[2:], mode="nearest")
        return F.relu(self.smooth(total))

    def forward(self, x):
        features = self.features(x)
        if MENDED:
            return F.interpolate(self.classify(features), size=x.shape[2:], mode="bilinear")
        return self.classify(F.interpolate(features, size=x.shape[2:], mode="bilinear"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=draw("size", 80, 96))
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 8))
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Tiles(1600, args.size, 10_000), args.batch, shuffle=True, drop_last=True)
    model = Pyramid(args.width, args.dim)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, args.epochs * len(loader), 0.9)
    for epoch in range(args.epochs):
        right, total = torch.zeros(()), torch.zeros(())
        for pictures, kinds in loader:
            logits = model(pictures)
            loss = F.cross_entropy(logits, kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
            right += (logits.detach().argmax(1) == kinds).float().mean()
        print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}, right {right.item() / len(loader):.3f}")


if __name__ == "__main__":
    main()
