"""Strike coins that never were, and measure how near they come to real ones (Frechet distance of features)."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


def coins(count, size, seed):
    """Discs with a ring and a worn head."""
    generator = torch.Generator().manual_seed(seed)
    line = torch.linspace(-1, 1, size)
    radius = (line.view(-1, 1) ** 2 + line.view(1, -1) ** 2).sqrt()
    edge = 0.7 + 0.2 * torch.rand(count, 1, 1, 1, generator=generator)
    head = F.interpolate(torch.randn(count, 1, 4, 4, generator=generator), size=size, mode="bilinear")
    return (torch.sigmoid(30 * (edge - radius)) * (1 + 0.3 * head.tanh()) - 0.5).clamp(-1, 1)


class Features(nn.Module):
    """A fixed network that says what pictures are like."""

    def __init__(self, dim=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, dim, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.requires_grad_(False).eval()

    def forward(self, pictures):
        return torch.cat([self.net(part) for part in pictures.split(128)])


class Distance:
    """How far the features of struck coins are from those of real ones, both taken as normal."""

    def __init__(self, features, real):
        self.features, self.real = features, real
        self.known = self.moments(real) if MENDED else None

    def moments(self, pictures):
        found = self.features(pictures).double()
        return found.mean(0), found.T.cov()

    @torch.no_grad()
    def __call__(self, struck):
        mean, spread = self.known or self.moments(self.real)
        other, others = self.moments(struck)
        values = torch.linalg.eigvals(spread @ others).real.clamp(min=0)
        return (mean - other).square().sum() + spread.trace() + others.trace() - 2 * values.sqrt().sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--noise", type=int, default=32)
    parser.add_argument("--width", type=int, default=draw("width", 12, 14))
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 28))
    parser.add_argument("--measure-every", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    torch.manual_seed(0)
    width = args.width
    minter = nn.Sequential(
        nn.Linear(args.noise, 4 * width * 16),
        nn.Unflatten(1, (4 * width, 4, 4)),
        nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
        nn.GroupNorm(2, 2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.GroupNorm(2, width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, 2, 1),
        nn.Tanh(),
    )
    judge = nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(4 * width * 16, 1),
    )
    real = coins(draw("coins", 3400, 3800), args.size, 0)
    distance = Distance(Features(), real)
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    of_minter = torch.optim.Adam(minter.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    for step in range(1, args.steps + 1):
        shown = real[torch.randint(0, len(real), (args.batch,))]
        struck = minter(torch.randn(args.batch, args.noise))
        loss = F.relu(1 - judge(shown)).mean() + F.relu(1 + judge(struck.detach())).mean()
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        judge.requires_grad_(False)
        of_minter.zero_grad()
        (-judge(struck).mean()).backward()
        of_minter.step()
        judge.requires_grad_(True)
        if step % args.measure_every == 0:
            with torch.no_grad():
                found = distance(minter(torch.randn(256, args.noise)))
            print(f"step {step}: judge {loss.item():.3f}, distance {found.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
