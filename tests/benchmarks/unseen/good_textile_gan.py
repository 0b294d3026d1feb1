"""Patterns of cloth: a GAN with a penalty on gradients at real pictures, taken every sixteen steps (lazy R1)."""

import argparse

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn


class Weaver(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.enter = nn.Linear(noise, 4 * width * 16)
        self.net = nn.Sequential(
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, noise):
        return self.net(self.enter(noise).view(len(noise), -1, 4, 4))


class Judge(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(4 * width * 16, 1),
        )  # fmt: skip

    def forward(self, pictures):
        return self.net(pictures).squeeze(1)


def penalty(judge, real):
    real = real.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(judge(real).sum(), real, create_graph=True)
    return gradient.square().sum((1, 2, 3)).mean()


def cloth(batch, seed):
    generator = torch.Generator().manual_seed(seed)
    across, down = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    while True:
        rates = 0.3 + torch.rand(batch, 3, 2, 1, 1, generator=generator)
        yield torch.sin(rates[:, :, 0] * across) * torch.sin(rates[:, :, 1] * down)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=int, default=48)
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--gamma", type=float, default=2.0)
    parser.add_argument("--lazy", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    weaver, judge = Weaver(args.noise, args.width), Judge(args.width)
    opt_judge = torch.optim.Adam(judge.parameters(), lr=3e-4, betas=(0.0, 0.99), fused=True)
    opt_weaver = torch.optim.Adam(weaver.parameters(), lr=2e-4, betas=(0.0, 0.99), fused=True)
    data = cloth(args.batch, 3)
    for step in range(1, args.steps + 1):
        real = next(data)
        with torch.no_grad():
            woven = weaver(torch.randn(args.batch, args.noise))
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(woven)).mean()
        if step % args.lazy == 0:
            loss = loss + 0.5 * args.gamma * args.lazy * penalty(judge, real)
        opt_judge.zero_grad()
        loss.backward()
        opt_judge.step()

        judge.requires_grad_(False)
        of_weaver = F.softplus(-judge(weaver(torch.randn(args.batch, args.noise)))).mean()
        opt_weaver.zero_grad()
        of_weaver.backward()
        opt_weaver.step()
        judge.requires_grad_(True)
        if step % 50 == 0:
            print(f"step {step}: judge {loss.item():.3f}, weaver {of_weaver.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
