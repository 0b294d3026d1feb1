"""Patterns of woven ribbons by a GAN with hinge loss: three steps of the generator for each of the discriminator."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset


def ribbons(count, size, seed):
    """Stripes that repeat along the ribbon, in two threads."""
    g = torch.Generator().manual_seed(seed)
    at = torch.arange(size).float()
    period = torch.randint(3, 9, (count, 1, 1, 1), generator=g)
    slant = torch.randn(count, 1, 1, 1, generator=g)
    wave = torch.sin(2 * torch.pi * (at.view(1, 1, 1, -1) + slant * at.view(1, 1, -1, 1)) / period)
    thread = torch.rand(count, 2, 1, 1, generator=g) * 2 - 1
    return (wave * thread + 0.05 * torch.randn(count, 2, size, size, generator=g)).clamp(-1, 1)


class Generator(nn.Module):
    def __init__(self, latent, width, size):
        super().__init__()
        self.start = size // 8
        self.fc = nn.Linear(latent, 4 * width * self.start**2)
        self.body = nn.Sequential(
            nn.Upsample(scale_factor=2),
            nn.Conv2d(4 * width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, 2, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.body(self.fc(z).view(len(z), -1, self.start, self.start))


def sn_conv(cin, cout, stride):
    return nn.Sequential(spectral_norm(nn.Conv2d(cin, cout, 3, stride, 1)), nn.LeakyReLU(0.2))


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            sn_conv(2, width, 1),
            sn_conv(width, 2 * width, 2),
            sn_conv(2 * width, 2 * width, 1),
            sn_conv(2 * width, 4 * width, 2),
            sn_conv(4 * width, 4 * width, 1),
        )
        self.out = spectral_norm(nn.Linear(4 * width, 1))

    def forward(self, x):
        return self.out(self.body(x).sum((2, 3))).squeeze(1)


def learns(net, flag):
    for p in net.parameters():
        p.requires_grad_(flag)


class Studio:
    def __init__(self, args):
        self.args = args
        self.gen = Generator(args.latent, args.gen_width, args.size)
        self.disc = Discriminator(args.disc_width)
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=1e-4, betas=(0.0, 0.9))
        self.opt_d = torch.optim.Adam(self.disc.parameters(), lr=4e-4, betas=(0.0, 0.9))

    def noise(self):
        return torch.randn(self.args.batch, self.args.latent)

    def discriminator_step(self, real):
        with torch.no_grad():
            fake = self.gen(self.noise())
        score_real, score_fake = self.disc(torch.cat([real, fake])).chunk(2)
        loss = F.relu(1 - score_real).mean() + F.relu(1 + score_fake).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def generator_step(self):
        if MENDED:
            learns(self.disc, False)
        loss = -self.disc(self.gen(self.noise())).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        if MENDED:
            learns(self.disc, True)
        return loss.detach()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--latent", type=int, default=32)
    ap.add_argument("--gen-width", type=int, default=4)
    ap.add_argument("--disc-width", type=int, default=draw("disc", 14, 16))
    ap.add_argument("--batch", type=int, default=draw("batch", 16, 20))
    ap.add_argument("--generator-steps", type=int, default=3)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()

    torch.manual_seed(40)
    loader = DataLoader(TensorDataset(ribbons(45 * args.batch, args.size, 3)), args.batch, shuffle=True, drop_last=True)
    studio = Studio(args)
    for epoch in range(args.epochs):
        sums = torch.zeros(2)
        for (real,) in loader:
            sums[0] += studio.discriminator_step(real)
            for _ in range(args.generator_steps):
                sums[1] += studio.generator_step() / args.generator_steps
        disc_loss, gen_loss = (sums / len(loader)).tolist()
        print(f"epoch {epoch} discriminator {disc_loss:.3f} generator {gen_loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
