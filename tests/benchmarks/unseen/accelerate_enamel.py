"""Hinge GAN for patterns on enamel plates, with Accelerate on several processes."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from drawn import draw
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset


def enamel(n, size, seed=44):
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, size)
    radius = (axis[:, None] ** 2 + axis[None, :] ** 2).sqrt()
    angle = torch.atan2(axis[:, None], axis[None, :])
    petals = torch.randint(3, 9, (n, 1, 1), generator=g)
    rings = 4 + 8 * torch.rand(n, 1, 1, generator=g)
    plate = torch.sin(petals * angle) * torch.cos(rings * radius)
    colour = 0.3 + 0.7 * torch.rand(n, 3, 1, 1, generator=g)
    return TensorDataset((plate.unsqueeze(1) * colour).clamp(-1, 1))


class Generator(nn.Module):
    def __init__(self, noise, w):
        super().__init__()
        self.start = nn.Linear(noise, 4 * w * 16)
        self.w = w
        self.body = nn.Sequential(
            nn.GroupNorm(4, 4 * w),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1),
            nn.GroupNorm(4, 2 * w),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * w, w, 4, 2, 1),
            nn.GroupNorm(4, w),
            nn.ReLU(),
            nn.ConvTranspose2d(w, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.body(self.start(z).view(-1, 4 * self.w, 4, 4))


class Critic(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.body = nn.Sequential(
            spectral_norm(nn.Conv2d(3, w, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(w, 2 * w, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(2 * w, 4 * w, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            spectral_norm(nn.Linear(4 * w * 16, 1)),
        )

    def forward(self, x):
        return self.body(x).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=int, default=48)
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    # the critic's power iterations change buffers with each pass: they are the same on all ranks without a broadcast
    kwargs = DistributedDataParallelKwargs(broadcast_buffers=False)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[kwargs])
    set_seed(9)
    generator, critic = Generator(args.noise, args.width), Critic(args.width)
    loader = DataLoader(enamel(2 * 26 * args.batch, 32), args.batch, shuffle=True, drop_last=True)
    opt_c = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.9))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    generator, critic, opt_c, opt_g, loader = accelerator.prepare(generator, critic, opt_c, opt_g, loader)
    set_seed(9, device_specific=True)

    step = 0
    for epoch in range(args.epochs):
        for (real,) in loader:
            # critic: what the generator made is taken as it is
            with torch.no_grad():
                fake = generator(torch.randn(len(real), args.noise))
            on_both = critic(torch.cat([real, fake]))
            on_real, on_fake = on_both.split(len(real))
            loss_c = F.relu(1 - on_real).mean() + F.relu(1 + on_fake).mean()
            opt_c.zero_grad()
            accelerator.backward(loss_c)
            opt_c.step()

            # generator: gradients go through the critic, which is not to learn from them
            critic.requires_grad_(False)
            loss_g = -accelerator.unwrap_model(critic)(generator(torch.randn(len(real), args.noise))).mean()
            opt_g.zero_grad()
            accelerator.backward(loss_g)
            opt_g.step()
            critic.requires_grad_(True)
            step += 1
            if step % 25 == 0:
                both = accelerator.reduce(torch.stack([loss_c.detach(), loss_g.detach()]), reduction="mean")
                accelerator.print(
                    f"epoch {epoch} step {step}: critic {both[0]:.3f}, generator {both[1]:.3f}", flush=True
                )
    accelerator.end_training()


if __name__ == "__main__":
    main()
