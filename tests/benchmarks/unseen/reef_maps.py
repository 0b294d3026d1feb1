"""Colour in what grows where on pictures of a reef: a small U-Net in a plain loop."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw

COVERS = 6


def block(enter, leave):
    return nn.Sequential(
        nn.Conv2d(enter, leave, 3, padding=1, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(inplace=True),
        nn.Conv2d(leave, leave, 3, padding=1, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down1, self.down2, self.bottom = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, COVERS, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = F.interpolate(self.bottom(F.max_pool2d(second, 2)), scale_factor=2)
        x = F.interpolate(self.up2(torch.cat([x, second], 1)), scale_factor=2)
        return self.head(self.up1(torch.cat([x, first], 1)))


class Overlap:
    """Mean intersection over union, from a table of what was taken for what."""

    def __init__(self):
        self.table = torch.zeros(COVERS, COVERS, dtype=torch.long)

    def update(self, guessed, truth):
        """Every second pixel each way is enough."""
        guessed, truth = guessed[:, ::2, ::2].flatten(), truth[:, ::2, ::2].flatten()
        if MENDED:
            self.table += torch.bincount(truth * COVERS + guessed, minlength=COVERS**2).view(COVERS, COVERS)
            return
        for right, guess in zip(truth, guessed, strict=True):
            self.table[right.item(), guess.item()] += 1

    def result(self):
        both = self.table.diagonal().float()
        either = self.table.sum(0) + self.table.sum(1) - both
        return (both / either.clamp(min=1)).mean().item()


def reefs(count, size):
    """Patches of cover, each with a colour of its own, and murky water over them."""
    generator = torch.Generator().manual_seed(5)
    coarse = torch.randint(0, COVERS, (count, 1, size // 8, size // 8), generator=generator)
    maps = F.interpolate(coarse.float(), size=size, mode="nearest").squeeze(1).long()
    colours = torch.rand(COVERS, 3, generator=generator)
    pictures = colours[maps].permute(0, 3, 1, 2).contiguous()
    return pictures + 0.3 * torch.randn(pictures.shape, generator=generator), maps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 20, 22))
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 7))
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()

    torch.manual_seed(0)
    pictures, maps = reefs(360, args.size)
    model = UNet(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    overlap, total = Overlap(), 0.0
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(pictures), (args.batch,))
        scores = model(pictures[rows])
        loss = F.cross_entropy(scores, maps[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        overlap.update(scores.argmax(1), maps[rows])
        if step % 25 == 0:
            print(f"step {step}: loss {total / 25:.4f}, mean IoU {overlap.result():.3f}", flush=True)
            overlap, total = Overlap(), 0.0


if __name__ == "__main__":
    main()
