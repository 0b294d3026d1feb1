"""Tread of tyres told apart in summer pictures and used in winter ones: features that do not know the season."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, TensorDataset

TREADS = 6


def tyres(count, size, seed, winter=False):
    g = torch.Generator().manual_seed(seed)
    tread = torch.randint(TREADS, (count,), generator=g)
    angle = (tread.float() * math.pi / TREADS + 0.1 * torch.randn(count, generator=g)).view(-1, 1, 1)
    y, x = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    groove = torch.sin(1.2 * (x * angle.cos() + y * angle.sin()))
    image = groove + 0.5 * torch.randn(count, size, size, generator=g)
    if winter:
        snow = torch.rand(count, size, size, generator=g) < 0.05
        image = 0.9 * image.masked_fill(snow, 1.5) + 0.1
    return image.unsqueeze(1), tread


class Reverse(torch.autograd.Function):
    """As it is on the way forward, the other sign on the way back."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class TyreNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
        )
        self.tread = nn.Sequential(nn.Linear(18 * width, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, TREADS))
        self.season = nn.Sequential(nn.Linear(18 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, image, strength=0.0):
        h = self.features(image)
        return self.tread(h), self.season(Reverse.apply(h, strength)).squeeze(1)


def forever(loader):
    while True:
        yield from loader


@torch.no_grad()
def right(model, loader):
    model.eval()
    found = sum((model(image)[0].argmax(1) == tread).sum().item() for image, tread in loader)
    model.train()
    return found / len(loader.dataset)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--width", type=int, default=draw("width", 18, 20))
    ap.add_argument("--batch", type=int, default=draw("batch", 30, 32))
    ap.add_argument("--steps", type=int, default=100)
    args = ap.parse_args()

    torch.manual_seed(2)
    summer = DataLoader(TensorDataset(*tyres(50 * args.batch, args.size, 1)), args.batch, shuffle=True, drop_last=True)
    winter_images, _ = tyres(35 * args.batch, args.size, 2, winter=True)  # nobody has told their treads
    winter = DataLoader(TensorDataset(winter_images), args.batch, shuffle=True, drop_last=True)
    check = DataLoader(TensorDataset(*tyres(6 * args.batch, args.size, 3, winter=True)), 64)
    model = TyreNet(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    season = torch.cat([torch.zeros(args.batch), torch.ones(args.batch)])
    pairs = zip(range(args.steps), forever(summer), forever(winter), strict=False)
    for step, (image, tread), (snowy,) in pairs:
        strength = 2 / (1 + math.exp(-10 * step / args.steps)) - 1
        tread_logits, season_logits = model(torch.cat([image, snowy]), strength)
        tread_loss = F.cross_entropy(tread_logits[: args.batch], tread)
        season_loss = F.binary_cross_entropy_with_logits(season_logits, season)
        optimizer.zero_grad()
        (tread_loss + season_loss).backward()
        optimizer.step()
        if (step + 1) % 25 == 0:
            print(f"{step + 1} tread {tread_loss.item():.3f} season {season_loss.item():.3f}", flush=True)
    print(f"winter right {right(model, check):.3f}", flush=True)


if __name__ == "__main__":
    main()
