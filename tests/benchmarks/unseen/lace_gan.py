"""Patterns of bobbin lace: a generator and a critic with hinge loss over small swatches, cut from scans beforehand."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

SIZE = 16


def swatches(count, seed):
    """Threads that cross at two angles, in 8 bits."""
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    y, x, scans = y.to(torch.int16), x.to(torch.int16), []
    for _ in range(count // 10_000):
        slope = torch.randint(1, 5, (10_000, 2, 1, 1), generator=g, dtype=torch.int16)
        shift = torch.randint(SIZE, (10_000, 2, 1, 1), generator=g, dtype=torch.int16)
        first = (x + slope[:, 0] * y + shift[:, 0]) % 6 < 2
        second = (x - slope[:, 1] * y + shift[:, 1]) % 8 < 2
        scans.append((first | second).to(torch.uint8) * 200)
    return torch.cat(scans).unsqueeze(1)


class Generator(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.noise, self.width = noise, width
        self.first = nn.Linear(noise, 2 * width * 16)
        self.body = nn.Sequential(
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.body(self.first(z).view(len(z), 2 * self.width, 4, 4))


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            spectral_norm(nn.Conv2d(1, width, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(width, 2 * width, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            spectral_norm(nn.Linear(2 * width * 16, 1)),
        )

    def forward(self, x):
        return self.body(x).squeeze(1)


class Workshop:
    def __init__(self, data, batch, width, noise=48):
        self.loader = DataLoader(data, batch, shuffle=True, drop_last=True)
        self.batch, self.noise = batch, noise
        self.gen, self.critic = Generator(noise, width), Critic(width)
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=2e-4, betas=(0.0, 0.9))
        self.opt_c = torch.optim.Adam(self.critic.parameters(), lr=4e-4, betas=(0.0, 0.9))
        self.going = iter(self.loader)

    def real(self):
        if MENDED:
            batch = next(self.going, None)
            if batch is None:
                self.going = iter(self.loader)
                batch = next(self.going)
        else:
            batch = next(iter(self.loader))
        return batch[0].float() / 100 - 1

    def fake(self):
        return self.gen(torch.randn(self.batch, self.noise))

    def critic_step(self):
        with torch.no_grad():
            fake = self.fake()
        loss = F.relu(1 - self.critic(self.real())).mean() + F.relu(1 + self.critic(fake)).mean()
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        return loss.detach()

    def generator_step(self):
        self.critic.requires_grad_(False)
        loss = -self.critic(self.fake()).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.detach()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--swatches", type=int, default=draw("swatches", 260_000, 320_000, 380_000))
    p.add_argument("--width", type=int, default=draw("width", 24, 28))
    p.add_argument("--batch", type=int, default=40)
    p.add_argument("--steps", type=int, default=120)
    args = p.parse_args()

    torch.manual_seed(9)
    shop = Workshop(TensorDataset(swatches(args.swatches, seed=1)), args.batch, args.width)
    for step in range(1, args.steps + 1):
        critic = shop.critic_step()
        generator = shop.generator_step()
        if step % 25 == 0:
            print(f"step {step} critic {critic.item():.3f} generator {generator.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
