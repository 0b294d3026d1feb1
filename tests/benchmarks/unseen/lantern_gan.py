"""Draw paper lanterns with a least-squares GAN on two ranks; both networks are wrapped."""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def maker(noise, width):
    return nn.Sequential(
        nn.Linear(noise, 4 * width * 16),
        nn.Unflatten(1, (4 * width, 4, 4)),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(4 * width, 2 * width, 3, 1, 1),
        nn.GroupNorm(4, 2 * width),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(2 * width, width, 3, 1, 1),
        nn.GroupNorm(4, width),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(width, 3, 3, 1, 1),
        nn.Tanh(),
    )


def critic(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(4 * width * 16, 1),
    )


def lanterns(count):
    """Discs of light of different height and colour."""
    generator = torch.Generator().manual_seed(31)
    row, column = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
    height, tall = torch.rand(2, count, 1, 1, generator=generator)
    light = torch.exp(-4 * ((row - height + 0.5) ** 2 * (1 + tall) + column**2)).unsqueeze(1)
    return TensorDataset(2 * light * torch.rand(count, 3, 1, 1, generator=generator) - 1)


@torch.no_grad()
def follow(average, model, decay):
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 1 - decay)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 28, 32))
    parser.add_argument("--noise", type=int, default=48)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 22))
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    make, judge = DDP(maker(args.noise, args.width)), DDP(critic(args.width))
    average = copy.deepcopy(make.module).requires_grad_(False)
    torch.manual_seed(1 + dist.get_rank())
    data = lanterns(2800)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.99))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-4, betas=(0.5, 0.99))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            fake = make(torch.randn(len(real), args.noise))
            judged = judge(torch.cat([real, fake.detach()]))
            told, made = judged.chunk(2)
            wrong = F.mse_loss(told, torch.ones_like(told)) + made.square().mean()
            of_judge.zero_grad()
            wrong.backward()
            of_judge.step()

            judge.requires_grad_(False)
            scores = judge.module(fake)
            fooled = F.mse_loss(scores, torch.ones_like(scores))
            of_make.zero_grad()
            fooled.backward()
            of_make.step()
            judge.requires_grad_(True)
            follow(average, make.module, 0.995)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: judge {wrong.item():.3f}, maker {fooled.item():.3f}", flush=True)
    if dist.get_rank() == 0:
        torch.save(average.state_dict(), "average.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
