"""Shapes of pewter jugs: a GAN with a hinge loss, a lazy gradient penalty and an average of the generator."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw


def jugs(count, size, seed):
    """Outlines of turned jugs, light from the left."""
    g = torch.Generator().manual_seed(seed)
    y = torch.linspace(-1, 1, size).view(1, -1, 1)
    x = torch.linspace(-1, 1, size).view(1, 1, -1)
    belly, neck, foot = (torch.rand(count, 1, 1, generator=g) for _ in range(3))
    profile = 0.25 + 0.35 * belly * torch.exp(-4 * (y - 0.2) ** 2) - 0.15 * neck * torch.exp(-12 * (y + 0.5) ** 2)
    profile = profile + 0.1 * foot * (y > 0.8)
    shade = torch.cos(2.2 * x / profile - 0.6)
    return torch.where(x.abs() < profile, 0.9 * shade, -torch.ones(())).unsqueeze(1).clamp(-1, 1)


class Smith(nn.Module):
    def __init__(self, noise, width, side):
        super().__init__()
        self.noise, self.width, self.side = noise, width, side
        self.first = nn.Linear(noise, 4 * width * side * side)
        self.body = nn.Sequential(
            nn.GroupNorm(4, 4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, 1, 3, 1, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.body(self.first(z).view(len(z), 4 * self.width, self.side, self.side))


class Buyer(nn.Module):
    def __init__(self, width, side):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(2 * width * side * side, 1),
        )

    def forward(self, x):
        return self.body(x).squeeze(1)


def penalty(buyer, real):
    """Mean square of the gradient at real jugs."""
    real = real.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(buyer(real).sum(), real, create_graph=True)
    return grad.square().sum((1, 2, 3)).mean()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--noise", type=int, default=48)
    p.add_argument("--width", type=int, default=draw("width", 24, 28, 32))
    p.add_argument("--batch", type=int, default=draw("batch", 24, 28))
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--every", type=int, default=8, help="steps between two penalties")
    args = p.parse_args()

    torch.manual_seed(18)
    shelf = jugs(6000, 32, seed=1)
    smith, buyer = Smith(args.noise, args.width, 8), Buyer(args.width, 8)
    shown = copy.deepcopy(smith).requires_grad_(False)
    opt_buyer = torch.optim.Adam(buyer.parameters(), lr=3e-4, betas=(0.0, 0.99), fused=True)
    opt_smith = torch.optim.Adam(smith.parameters(), lr=2e-4, betas=(0.0, 0.99), fused=True)
    weights, averages = list(smith.parameters()), list(shown.parameters())
    for step in range(args.steps):
        real = shelf[torch.randint(len(shelf), (args.batch,))]
        with torch.no_grad():
            fake = smith(torch.randn(args.batch, args.noise))
        yes, no = buyer(torch.cat([real, fake])).chunk(2)
        buyer_loss = F.relu(1 - yes).mean() + F.relu(1 + no).mean()
        if step % args.every == 0:
            buyer_loss = buyer_loss + args.every * penalty(buyer, real[: args.batch // 2])
        opt_buyer.zero_grad()
        buyer_loss.backward()
        opt_buyer.step()

        buyer.requires_grad_(False)
        smith_loss = -buyer(smith(torch.randn(args.batch, args.noise))).mean()
        opt_smith.zero_grad()
        smith_loss.backward()
        opt_smith.step()
        buyer.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 0.01)
        if step % 40 == 39:
            with torch.no_grad():
                spread = shown(torch.randn(64, args.noise)).std(0).mean()
            print(f"step {step + 1} buyer {buyer_loss.item():.3f} smith {smith_loss.item():.3f} spread {spread:.3f}")


if __name__ == "__main__":
    main()
