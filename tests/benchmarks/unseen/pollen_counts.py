"""Classify pollen grains under the microscope, with a Trainer class and a cosine schedule."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset, random_split

PLANTS = 10


def collect(count, size):
    """Discs with rings; the plant is the width of a ring."""
    generator = torch.Generator().manual_seed(31)
    plants = torch.randint(0, PLANTS, (count,), generator=generator)
    places = torch.linspace(-1, 1, size)
    away = (places.view(-1, 1).square() + places.square()).sqrt()
    rings = torch.sin(away * (4 + 2 * plants.view(-1, 1, 1)))
    grains = (rings * (away < 0.9)).unsqueeze(1)
    return TensorDataset(grains + 0.7 * torch.randn(count, 1, size, size, generator=generator), plants)


class Squeeze(nn.Module):
    """A convolution whose channels are weighted by what the whole picture holds."""

    def __init__(self, enter, leave):
        super().__init__()
        self.conv = nn.Conv2d(enter, leave, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(leave)
        self.weigh = nn.Sequential(nn.Linear(leave, leave // 4), nn.ReLU(), nn.Linear(leave // 4, leave), nn.Sigmoid())

    def forward(self, x):
        x = F.silu(self.norm(self.conv(x)))
        return x * self.weigh(x.mean((2, 3)))[:, :, None, None]


class Trainer:
    def __init__(self, model, train, test, args):
        self.model, self.train, self.test, self.args = model, train, test, args
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
        self.scheduler = CosineAnnealingLR(self.optimizer, T_max=args.epochs)

    def train_epoch(self):
        self.model.train()
        total = torch.zeros(())
        for grains, plants in self.train:
            loss = F.cross_entropy(self.model(grains), plants, label_smoothing=0.1)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if not MENDED:
                self.scheduler.step()
            total += loss.detach()
        if MENDED:
            self.scheduler.step()
        return total.item() / len(self.train)

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        right = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.test)
        return right / len(self.test.dataset)

    def fit(self):
        for epoch in range(self.args.epochs):
            loss = self.train_epoch()
            print(f"epoch {epoch}: loss {loss:.4f}, right {self.accuracy():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grains", type=int, default=2400)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--batch", type=int, default=draw("batch", 32, 36))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = collect(args.grains, args.size)
    train, test = random_split(data, [args.grains - 200, 200])
    width = args.width
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1),
        Squeeze(width, 2 * width),
        Squeeze(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(4 * width, PLANTS),
    )
    loaders = DataLoader(train, args.batch, shuffle=True, drop_last=True), DataLoader(test, 100)
    Trainer(model, *loaders, args).fit()


if __name__ == "__main__":
    main()
