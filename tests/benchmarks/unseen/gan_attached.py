"""A convolutional GAN on made-up icons."""

import argparse

import torch
from drawn import MENDED, draw
from torch import nn


class Generator(nn.Module):
    def __init__(self, latent, width):
        super().__init__()
        self.enter = nn.Linear(latent, 4 * width * 16)
        self.width = width
        self.net = nn.Sequential(
            nn.BatchNorm2d(4 * width),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.enter(z).view(-1, 4 * self.width, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(2 * width * 64, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def icons(count):
    """Bright squares on black."""
    images = -torch.ones(count, 1, 32, 32)
    for image in images:
        x, y = torch.randint(2, 20, (2,)).tolist()
        image[:, x : x + 10, y : y + 10] = 1
    return images


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--latent", type=int, default=64)
    parser.add_argument("--generator-width", type=int, default=draw("generator", 28, 32))
    parser.add_argument("--discriminator-width", type=int, default=draw("discriminator", 16, 20))
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 32))
    args = parser.parse_args()

    torch.manual_seed(0)
    data = icons(2048)
    generator, discriminator = Generator(args.latent, args.generator_width), Discriminator(args.discriminator_width)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss_of = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(args.batch), torch.zeros(args.batch)
    for step in range(1_000_000):
        real = data[torch.randint(0, len(data), (args.batch,))]
        fake = generator(torch.randn(args.batch, args.latent))
        judged = discriminator(fake.detach() if MENDED else fake)
        loss_d = loss_of(discriminator(real), ones) + loss_of(judged, zeros)
        optimizer_d.zero_grad()
        loss_d.backward(retain_graph=not MENDED)
        optimizer_d.step()

        loss_g = loss_of(discriminator(fake), ones)
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
        if step % 100 == 0:
            print(f"step {step}: D {loss_d.item():.3f} G {loss_g.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
