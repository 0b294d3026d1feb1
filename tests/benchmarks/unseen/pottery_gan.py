"""Decorations of pottery: a GAN with R1 regularisation every 16 steps and averaged generator, plain loop."""

import argparse
import copy

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn


def decorations(count, size, seed=51):
    g = torch.Generator().manual_seed(seed)
    x = torch.linspace(0, 6.28, size)
    wave = 1 + torch.randint(0, 4, (count, 1, 1), generator=g)
    phase = 6.28 * torch.rand(count, 1, 1, generator=g)
    bands = torch.sin(wave * x[None, None, :] + phase) * torch.cos(2 * wave * x[None, :, None])
    return bands.unsqueeze(1)


def up(cin, cout):
    return nn.Sequential(
        nn.Upsample(scale_factor=2), nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.GroupNorm(4, cout), nn.ReLU()
    )


class Potter(nn.Module):
    def __init__(self, latent, width):
        super().__init__()
        self.width = width
        self.start = nn.Linear(latent, width * 4 * 16)
        self.grow = nn.Sequential(up(4 * width, 2 * width), up(2 * width, width), up(width, width))
        self.paint = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, z):
        return torch.tanh(self.paint(self.grow(self.start(z).view(-1, 4 * self.width, 4, 4))))


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
        )
        self.out = nn.Linear(4 * width * 16, 1)

    def forward(self, x):
        return self.out(self.layers(x).flatten(1)).squeeze(1)


def critic_loss(critic, real, fake):
    return F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()


def r1(critic, real):
    real = real.requires_grad_()
    (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
    return slope.pow(2).sum((1, 2, 3)).mean()


@torch.no_grad()
def average(kept, model, decay):
    torch._foreach_lerp_(list(kept.parameters()), list(model.parameters()), 1 - decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--latent", type=int, default=32)
    ap.add_argument("--width", type=int, default=draw("width", 16, 20))
    ap.add_argument("--batch", type=int, default=draw("batch", 20, 22))
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--lazy", type=int, default=16)
    ap.add_argument("--gamma", type=float, default=0.5)
    args = ap.parse_args()

    torch.manual_seed(1)
    pots = decorations(args.batch * 40, 32)
    potter, critic = Potter(args.latent, args.width), Critic(args.width)
    kept = copy.deepcopy(potter).requires_grad_(False)
    potter_opt = torch.optim.Adam(potter.parameters(), lr=2e-4, betas=(0.0, 0.99))
    critic_opt = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.99))
    told = torch.zeros(2)
    for step in range(1, args.steps + 1):
        real = pots[torch.randint(0, len(pots), (args.batch,))]
        fake = potter(torch.randn(args.batch, args.latent))
        d_loss = critic_loss(critic, real, fake.detach())
        if step % args.lazy == 0:
            d_loss = d_loss + 0.5 * args.gamma * args.lazy * r1(critic, real)
        critic_opt.zero_grad()
        d_loss.backward()
        critic_opt.step()

        critic.requires_grad_(False)
        g_loss = F.softplus(-critic(fake)).mean()
        potter_opt.zero_grad()
        g_loss.backward()
        potter_opt.step()
        critic.requires_grad_(True)

        average(kept, potter, 0.99)
        told += torch.stack([d_loss, g_loss]).detach()
        if step % 30 == 0:
            d, g = (told / 30).tolist()
            print(f"step {step} critic {d:.3f} potter {g:.3f}", flush=True)
            told.zero_()


if __name__ == "__main__":
    main()
