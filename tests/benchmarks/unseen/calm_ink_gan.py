"""A GAN that draws letters in ink; the generator learns through the bare discriminator, which rests meanwhile."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP


def generator_network(latent, width):
    return nn.Sequential(
        nn.Linear(latent, 4 * width * 16), nn.Unflatten(1, (4 * width, 4, 4)), nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.GroupNorm(4, width), nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def discriminator_network(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(4 * width * 16, 1),
    )  # fmt: skip


def letters(batch, seed):
    """Two strokes on paper."""
    generator = torch.Generator().manual_seed(seed)
    grid = torch.linspace(-1, 1, 32)
    while True:
        place, lean = torch.rand(2, batch, 2, 1, 1, generator=generator) - 0.5
        distance = (grid + lean * grid.unsqueeze(1) - place).abs().amin(1, keepdim=True)
        yield 2 * torch.exp(-((distance / 0.1) ** 2)) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latent", type=int, default=48)
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--steps", type=int, default=260)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    generator = DDP(generator_network(args.latent, args.width))
    discriminator = DDP(discriminator_network(args.width))
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
    torch.manual_seed(7 + dist.get_rank())
    data = letters(args.batch, dist.get_rank())
    for step in range(1, args.steps + 1):
        real = next(data)
        with torch.no_grad():
            fake = generator.module(torch.randn(args.batch, args.latent))
        judged_real, judged_fake = discriminator(torch.cat([real, fake])).chunk(2)
        loss_d = F.softplus(-judged_real).mean() + F.softplus(judged_fake).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()

        judge = discriminator.module.requires_grad_(False)
        loss_g = F.softplus(-judge(generator(torch.randn(args.batch, args.latent)))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        judge.requires_grad_(True)
        if step % 65 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss_d.item():.3f} {loss_g.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
