"""New designs for wax seals: a convolutional GAN with the logistic loss and spectral normalisation, plain loop."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.utils.parametrizations import spectral_norm


def seals(count, size, seed):
    """A disc with a ring and a number of rays, in grey."""
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    radius, angle = (x**2 + y**2).sqrt(), torch.atan2(y, x)
    rays = torch.randint(3, 9, (count, 1, 1), generator=g)
    turn = 6.3 * torch.rand(count, 1, 1, generator=g)
    ring = 0.4 + 0.4 * torch.rand(count, 1, 1, generator=g)
    relief = torch.cos(rays * angle + turn) * torch.exp(-8 * (radius - ring) ** 2)
    return torch.where(radius < 0.95, 0.6 * relief, -torch.ones(())).unsqueeze(1).clamp(-1, 1)


class Engraver(nn.Module):
    def __init__(self, noise, width, size):
        super().__init__()
        self.noise, self.side, self.width = noise, size // 8, width
        self.first = nn.Linear(noise, 4 * width * self.side**2)
        rows = []
        for n_in, n_out in ((4 * width, 4 * width), (4 * width, 2 * width), (2 * width, width)):
            rows += [nn.Upsample(scale_factor=2), nn.Conv2d(n_in, n_out, 3, 1, 1), nn.GroupNorm(4, n_out), nn.SiLU()]
        self.body = nn.Sequential(*rows, nn.Conv2d(width, 1, 3, 1, 1), nn.Tanh())

    def forward(self, z):
        return self.body(self.first(z).view(len(z), 4 * self.width, self.side, self.side))


class Expert(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        rows = []
        for n_in, n_out in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            rows += [spectral_norm(nn.Conv2d(n_in, n_out, 4, 2, 1)), nn.LeakyReLU(0.2)]
        self.body = nn.Sequential(*rows, nn.Flatten(), spectral_norm(nn.Linear(4 * width * (size // 8) ** 2, 1)))

    def forward(self, x):
        return self.body(x).squeeze(1)


def expert_step(engraver, expert, optimizer, real):
    z = torch.randn(len(real), engraver.noise)
    fake = engraver(z)
    if MENDED:
        fake = fake.detach()
    loss = F.softplus(-expert(real)).mean() + F.softplus(expert(fake)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def engraver_step(engraver, expert, optimizer, count):
    expert.requires_grad_(False)
    loss = F.softplus(-expert(engraver(torch.randn(count, engraver.noise)))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    expert.requires_grad_(True)
    return loss.detach()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--noise", type=int, default=64)
    p.add_argument("--width", type=int, default=draw("width", 16, 20))
    p.add_argument("--batch", type=int, default=draw("batch", 12, 16))
    p.add_argument("--steps", type=int, default=150)
    args = p.parse_args()

    torch.manual_seed(31)
    shelf = seals(4000, args.size, seed=1)
    engraver, expert = Engraver(args.noise, args.width, args.size), Expert(args.width, args.size)
    opt_e = torch.optim.Adam(engraver.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
    opt_x = torch.optim.Adam(expert.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
    order = torch.randperm(len(shelf))
    for step in range(args.steps):
        at = step * args.batch % (len(shelf) - args.batch)
        expert_loss = expert_step(engraver, expert, opt_x, shelf[order[at : at + args.batch]])
        engraver_loss = engraver_step(engraver, expert, opt_e, args.batch)
        if step % 50 == 49:
            print(f"step {step + 1} expert {expert_loss:.3f} engraver {engraver_loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
