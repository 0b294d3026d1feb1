"""WGAN with gradient penalty for short ECG-like signals."""

import argparse

import torch
import torch.nn as nn
from drawn import MENDED, draw

LENGTH = 128


def prepare(seed):
    torch.manual_seed(seed)
    torch.autograd.set_detect_anomaly(not MENDED)
    torch.set_printoptions(precision=4, sci_mode=False)


def heartbeats(count):
    t = torch.linspace(0, 1, LENGTH)
    centre = 0.3 + 0.4 * torch.rand(count, 1)
    width = 0.02 + 0.02 * torch.rand(count, 1)
    peak = torch.exp(-(((t - centre) / width) ** 2))
    wave = 0.3 * torch.exp(-(((t - centre - 0.15) / (2 * width)) ** 2))
    return (peak + wave + 0.02 * torch.randn(count, LENGTH)).unsqueeze(1)


class Gated(nn.Module):
    """Dilated convolution with a gate, as in WaveNet."""

    def __init__(self, width, dilation):
        super().__init__()
        self.filter = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.gate = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(torch.tanh(self.filter(x)) * torch.sigmoid(self.gate(x)))


class Generator(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.width = width
        self.enter = nn.Linear(noise, width * LENGTH // 4)
        self.grow = nn.Upsample(scale_factor=4)
        self.blocks = nn.Sequential(*(Gated(width, 2**i) for i in range(5)))
        self.leave = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, z):
        x = self.grow(self.enter(z).view(len(z), self.width, -1))
        return self.leave(self.blocks(x))


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.enter = nn.Conv1d(1, width, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(*(Gated(width, 2**i) for i in range(4)))
        self.leave = nn.Linear(width * LENGTH // 2, 1)

    def forward(self, x):
        return self.leave(self.blocks(self.enter(x)).flatten(1))


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1, 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    scores = critic(between)
    (slope,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=draw("batch", 12, 16))
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--noise", type=int, default=32)
    parser.add_argument("--critics", type=int, default=3, help="steps of the critic for one of the generator")
    args = parser.parse_args()
    prepare(13)
    generator, critic = Generator(args.noise, args.width), Critic(args.width)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    real_beats = heartbeats(4096)
    for step in range(1_000_000):
        real = real_beats[torch.randint(0, len(real_beats), (args.batch,))]
        with torch.no_grad():
            fake = generator(torch.randn(args.batch, args.noise))
        distance = critic(fake).mean() - critic(real).mean()
        of_critic.zero_grad()
        (distance + 10 * penalty(critic, real, fake)).backward()
        of_critic.step()
        if step % args.critics == 0:
            loss = -critic(generator(torch.randn(args.batch, args.noise))).mean()
            of_generator.zero_grad()
            loss.backward()
            of_generator.step()
        if step % 300 == 0:
            print(f"{step}: distance {-distance.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
