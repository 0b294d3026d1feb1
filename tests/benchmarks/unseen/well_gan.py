"""A Wasserstein GAN with weight clipping on waveforms; generator and critic both distributed."""

import argparse

import torch
import torch.distributed as dist
from drawn import draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Generator(nn.Module):
    def __init__(self, latent, width):
        super().__init__()
        self.width = width
        self.enter = nn.Linear(latent, 4 * width * 16)
        self.net = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose1d(4 * width, 2 * width, 8, 4, 2),
            nn.ReLU(),
            nn.ConvTranspose1d(2 * width, width, 8, 4, 2),
            nn.ReLU(),
            nn.ConvTranspose1d(width, 1, 8, 4, 2),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.enter(z).view(-1, 4 * self.width, 16))


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 8, 4, 2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(width, 2 * width, 8, 4, 2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(2 * width, 4 * width, 8, 4, 2),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * width * 16, 1),
        )

    def forward(self, x):
        return self.net(x)


def tones(count, generator):
    time = torch.linspace(0, 1, 1024)
    pitch = torch.randint(3, 40, (count, 1), generator=generator)
    phase = 6.28 * torch.rand(count, 1, generator=generator)
    return (6.28 * pitch * time + phase).sin().unsqueeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--latent", type=int, default=48)
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 32))
    parser.add_argument("--critic-steps", type=int, default=1)
    parser.add_argument("--clip", type=float, default=0.02)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    maker, critic = DDP(Generator(args.latent, args.width)), DDP(Critic(args.width))
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    of_maker = torch.optim.RMSprop(maker.parameters(), lr=5e-5)
    rng = torch.Generator().manual_seed(rank)
    for step in range(1_000_000):
        for _ in range(args.critic_steps):
            with torch.no_grad():
                fake = maker(torch.randn(args.batch, args.latent, generator=rng))
            judged = critic(torch.cat([tones(args.batch, rng), fake]))
            loss_critic = judged[args.batch :].mean() - judged[: args.batch].mean()
            of_critic.zero_grad()
            loss_critic.backward()
            of_critic.step()
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter.clamp_(-args.clip, args.clip)
        critic.requires_grad_(False)
        loss_maker = -critic.module(maker(torch.randn(args.batch, args.latent, generator=rng))).mean()
        of_maker.zero_grad()
        loss_maker.backward()
        of_maker.step()
        critic.requires_grad_(True)
        if step % 100 == 0 and rank == 0:
            print(f"step {step}: critic {loss_critic.item():.4f} maker {loss_maker.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
