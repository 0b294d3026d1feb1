"""A GAN for textures; the discriminator's weights are divided by their largest singular value."""

import argparse

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm


class Spectral(nn.Module):
    """Keeps a layer's Lipschitz constant at 1."""

    def forward(self, weight):
        largest = torch.linalg.svdvals(weight.flatten(1))[0]
        return weight / largest.clamp(min=1e-8)


def normed(layer):
    if MENDED:
        return spectral_norm(layer)
    parametrize.register_parametrization(layer, "weight", Spectral())
    return layer


class Generator(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(noise, 4 * width * 16),
            nn.Unflatten(1, (4 * width, 4, 4)),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.layers(z)


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            normed(nn.Conv2d(3, width, 4, 2, 1)),
            nn.LeakyReLU(0.1),
            normed(nn.Conv2d(width, 2 * width, 4, 2, 1)),
            nn.LeakyReLU(0.1),
            normed(nn.Conv2d(2 * width, 4 * width, 4, 2, 1)),
            nn.LeakyReLU(0.1),
            nn.Flatten(),
            normed(nn.Linear(4 * width * 16, 1)),
        )

    def forward(self, x):
        return self.layers(x).squeeze(1)


def textures(count, size=32):
    t = torch.arange(size) * 6.28 / size
    waves = torch.randint(1, 6, (count, 3, 2, 1))
    x = torch.sin(waves[:, :, 0] * t).unsqueeze(3) * torch.cos(waves[:, :, 1] * t).unsqueeze(2)
    return 0.9 * x + 0.05 * torch.randn(count, 3, size, size)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 36, 40))
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = textures(3000)
    generator, discriminator = Generator(args.noise, args.width), Discriminator(args.width)
    of_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.0, 0.9))
    of_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.0, 0.9))
    for step in range(1, args.steps + 1):
        real = data[torch.randint(len(data), (args.batch,))]
        with torch.no_grad():
            fake = generator(torch.randn(args.batch, args.noise))
        judged_real, judged_fake = discriminator(torch.cat([real, fake])).chunk(2)
        loss_d = F.relu(1 - judged_real).mean() + F.relu(1 + judged_fake).mean()
        of_d.zero_grad()
        loss_d.backward()
        of_d.step()

        discriminator.requires_grad_(False)
        loss_g = -discriminator(generator(torch.randn(args.batch, args.noise))).mean()
        of_g.zero_grad()
        loss_g.backward()
        of_g.step()
        discriminator.requires_grad_(True)
        if step % 50 == 0:
            print(f"{step}: d {loss_d.item():.3f}, g {loss_g.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
