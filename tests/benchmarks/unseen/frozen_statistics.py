"""Train a new head on a frozen, pretrained backbone."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset


class Leaves(Dataset):
    """A few pictures of plants."""

    def __init__(self, count, size, classes):
        generator = torch.Generator().manual_seed(7)
        self.images = torch.rand(count, 3, size, size, generator=generator)
        self.labels = torch.randint(0, classes, (count,), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return (image - 0.45) / 0.22, self.labels[index]


def residual(inside, outside, stride):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
        nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
    )


class Backbone(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            residual(3, width, 2), residual(width, 2 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, x):
        return self.net(x)


class Model(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.backbone = Backbone(width)
        self.head = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, classes))

    def freeze(self):
        for parameter in self.backbone.parameters():
            parameter.requires_grad = False

    def forward(self, x):
        return self.head(self.backbone(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 32))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Leaves(640, args.size, 12), batch_size=args.batch, shuffle=True, drop_last=True)
    model = Model(args.width, 12)
    model.freeze()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=args.lr)
    for epoch in range(10_000):
        model.train()
        if MENDED:
            model.backbone.eval()
        total = 0.0
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
