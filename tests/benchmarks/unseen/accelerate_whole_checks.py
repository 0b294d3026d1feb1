"""Segment nuclei in microscopy with Accelerate; the Dice score on held-out slides decides what is kept."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def stage(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.third = stage(3, width), stage(width, 2 * width), stage(2 * width, 2 * width)
        self.back, self.last = stage(4 * width, width), stage(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.first(x)
        b = self.second(F.max_pool2d(a, 2))
        c = F.interpolate(self.third(F.max_pool2d(b, 2)), scale_factor=2.0)
        d = F.interpolate(self.back(torch.cat([b, c], 1)), scale_factor=2.0)
        return self.head(self.last(torch.cat([a, d], 1)))


def slides(count, size, seed):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 1, size // 8, size // 8, generator=generator)
    masks = (F.interpolate(coarse, size=(size, size), mode="bilinear") > 0.4).float()
    return TensorDataset(masks * 0.5 + 0.4 * torch.rand(count, 3, size, size, generator=generator), masks)


def dice(logits, masks):
    found = (logits > 0).float()
    shared = (found * masks).sum((1, 2, 3))
    return 2 * shared / (found.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1e-6)


@torch.no_grad()
def held_out_score(accelerator, model, loader):
    model.eval()
    scores = []
    for pictures, masks in loader:
        score = dice(model(pictures), masks)
        scores.append(accelerator.gather_for_metrics(score) if MENDED else score)
    model.train()
    return torch.cat(scores).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=draw("size", 40, 48))
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=draw("batch", 8, 10))
    parser.add_argument("--held-out", type=int, default=320)
    parser.add_argument("--check-every", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(1)
    model = UNet(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    train = DataLoader(slides(2000, args.size, 1), args.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(slides(args.held_out, args.size, 2), 2 * args.batch)
    model, optimizer, train = accelerator.prepare(model, optimizer, train)
    if MENDED:
        held_out = accelerator.prepare(held_out)
    best, step = 0.0, 0
    for epoch in range(args.epochs):
        for pictures, masks in train:
            loss = F.binary_cross_entropy_with_logits(model(pictures), masks)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % args.check_every == 0:
                score = held_out_score(accelerator, model, held_out)
                best = max(best, score)
                accelerator.print(f"epoch {epoch} step {step}: {loss.item():.4f}, dice {score:.4f}, best {best:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
