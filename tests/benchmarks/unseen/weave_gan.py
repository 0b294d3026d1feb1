"""Weave patterns with a GAN whose critic is kept smooth by a penalty on its gradients."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw


def weave(count, size):
    """Warp and weft of two threads."""
    period = torch.randint(3, 9, (count, 2, 1))
    places = torch.arange(size)
    warp = torch.sin(6.28 * places / period[:, 0])
    weft = torch.sin(6.28 * places / period[:, 1])
    cloth = torch.stack([warp.unsqueeze(1) * weft.unsqueeze(2), warp.unsqueeze(1) + 0 * weft.unsqueeze(2)], dim=1)
    return cloth + 0.05 * torch.randn_like(cloth)


class Loom(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.enter = nn.Linear(noise, 2 * width * 64)
        self.body = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, 1, 1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, 2, 3, 1, 1),
        )

    def forward(self, z):
        return self.body(self.enter(z).view(len(z), -1, 8, 8))


def critic(width):
    return nn.Sequential(
        nn.Conv2d(2, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(2 * width * 64, 1),
    )


@torch.no_grad()
def follow(average, model, decay):
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=int, default=48)
    parser.add_argument("--width", type=int, default=draw("width", 32, 36))
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 26))
    parser.add_argument("--penalty", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    loom, judge = Loom(args.noise, args.width), critic(args.width)
    smooth = copy.deepcopy(loom).requires_grad_(False)
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.0, 0.99), fused=True)
    loom_optimizer = torch.optim.Adam(loom.parameters(), lr=2e-4, betas=(0.0, 0.99), fused=True)
    for step in range(1, args.steps + 1):
        real = weave(args.batch, 32).requires_grad_()
        fake = loom(torch.randn(args.batch, args.noise)).detach()
        real_score, fake_score = judge(real), judge(fake)
        (slope,) = torch.autograd.grad(real_score.sum(), real, create_graph=True)
        penalty = slope.square().sum((1, 2, 3)).mean()
        judge_loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean() + args.penalty / 2 * penalty
        judge_optimizer.zero_grad()
        judge_loss.backward()
        judge_optimizer.step()

        judge.requires_grad_(False)
        loom_loss = F.softplus(-judge(loom(torch.randn(args.batch, args.noise)))).mean()
        loom_optimizer.zero_grad()
        loom_loss.backward()
        loom_optimizer.step()
        judge.requires_grad_(True)
        follow(smooth, loom, 0.995)
        if step % 25 == 0:
            print(f"step {step}: judge {judge_loss.item():.3f}, loom {loom_loss.item():.3f}", flush=True)
    torch.save(smooth.state_dict(), "loom.pt")


if __name__ == "__main__":
    main()
