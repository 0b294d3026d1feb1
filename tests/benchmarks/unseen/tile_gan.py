"""Draw glazed tiles with a hinge GAN, on two ranks."""

import argparse
import itertools
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from PIL import Image
from torch.nn.parallel import DistributedDataParallel as DDP


def glaze(count, size, generator):
    """Stripes that are mirrored twice, as on old tiles."""
    half = size // 2
    angle = 3.14 * torch.rand(count, 3, 1, 1, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(half), torch.arange(half), indexing="ij")
    waves = torch.sin(rows * angle.cos() + columns * angle.sin())
    top = torch.cat([waves, waves.flip(3)], dim=3)
    return torch.cat([top, top.flip(2)], dim=2)


class Generator(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.width = width
        self.enter = nn.Linear(noise, 4 * width * 16)
        self.ups = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in ((4 * width, 2 * width), (2 * width, width), (width, width))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, up.out_channels) for up in self.ups)
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z):
        x = self.enter(z).view(len(z), 4 * self.width, 4, 4)
        for up, norm in zip(self.ups, self.norms, strict=True):
            x = F.relu(norm(up(F.interpolate(x, scale_factor=2))))
        return torch.tanh(self.leave(x))


def critic(width):
    sizes = (3, width, 2 * width, 4 * width)
    layers = []
    for enter, leave in itertools.pairwise(sizes):
        layers += [nn.Conv2d(enter, leave, 4, 2, 1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width * 16, 1))


def save_grid(pictures, path, columns=8, zoom=3):
    """A sheet of pictures, enlarged so that one sees something."""
    pixels = ((pictures.clamp(-1, 1) + 1) * 127.5).byte().permute(0, 2, 3, 1)
    n, height, width, _ = pixels.shape
    sheet = pixels.view(n // columns, columns, height, width, 3).permute(0, 2, 1, 3, 4)
    sheet = Image.fromarray(sheet.reshape(n // columns * height, columns * width, 3).numpy())
    sheet.resize((sheet.width * zoom, sheet.height * zoom), Image.Resampling.BICUBIC).save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 18))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sample-every", type=int, default=100 if MENDED else 1)
    parser.add_argument("--output", type=Path, default=Path("tiles"))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    painter = DDP(Generator(args.noise, args.width))
    judge = DDP(critic(args.width))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.0, 0.9), fused=True)
    painter_optimizer = torch.optim.Adam(painter.parameters(), lr=1e-4, betas=(0.0, 0.9), fused=True)
    fixed = torch.randn(16, args.noise)
    torch.manual_seed(5 + rank)
    tiles = torch.Generator().manual_seed(5 + rank)
    args.output.mkdir(exist_ok=True)
    for step in range(1, args.steps + 1):
        real = glaze(args.batch, 32, tiles)
        with torch.no_grad():
            fake = painter(torch.randn(args.batch, args.noise))
        scores = judge(torch.cat([real, fake]))
        judge_loss = F.relu(1 - scores[: args.batch]).mean() + F.relu(1 + scores[args.batch :]).mean()
        judge_optimizer.zero_grad()
        judge_loss.backward()
        judge_optimizer.step()

        judge.requires_grad_(False)
        painter_loss = -judge.module(painter(torch.randn(args.batch, args.noise))).mean()
        painter_optimizer.zero_grad()
        painter_loss.backward()
        painter_optimizer.step()
        judge.requires_grad_(True)

        if step % args.sample_every == 0 and rank == 0:
            with torch.no_grad():
                save_grid(painter.module(fixed), args.output / f"{step:06d}.png")
        if step % 25 == 0 and rank == 0:
            print(f"step {step}: judge {judge_loss.item():.3f}, painter {painter_loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
