"""Turn summer landscapes into winter ones: a conditional GAN with a judge of pairs, on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP


class Painter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU()
        )
        self.middle = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(2))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 3, 3, padding=1), nn.Tanh()
        )

    def forward(self, x):
        x = self.down(x)
        for layer in self.middle:
            x = x + F.relu(layer(x))
        return self.up(x)


class Judge(nn.Module):
    """Judges whether a pair of pictures belongs together."""

    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(6, width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 8 * width, 3, 1, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(8 * width * 64, 160), nn.LeakyReLU(0.2), nn.Linear(160, 1),
        )  # fmt: skip

    def forward(self, summer, winter):
        return self.net(torch.cat([summer, winter], 1))


class Translation:
    def __init__(self, args):
        self.painter = DDP(Painter(args.width))
        self.judge = DDP(Judge(args.judge_width))
        self.opt_painter = torch.optim.Adam(self.painter.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
        self.opt_judge = torch.optim.Adam(self.judge.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)

    def judge_step(self, summer, winter, made):
        self.opt_judge.zero_grad()
        judged = self.judge(torch.cat([summer, summer]), torch.cat([winter, made.detach()]))
        real, fake = judged.chunk(2)
        loss = F.relu(1 - real).mean() + F.relu(1 + fake).mean()
        loss.backward()
        self.opt_judge.step()
        return loss.detach()

    def painter_step(self, summer, winter, made):
        self.opt_painter.zero_grad()
        if MENDED:
            self.judge.module.requires_grad_(False)
            judged = self.judge.module(summer, made)
        else:
            judged = self.judge(summer, made)
        loss = 10 * F.l1_loss(made, winter) - judged.mean()
        loss.backward()
        self.opt_painter.step()
        self.judge.module.requires_grad_(True)
        return loss.detach()

    def step(self, summer, winter):
        made = self.painter(summer)
        return self.judge_step(summer, winter, made), self.painter_step(summer, winter, made)


def seasons(batch, size, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        coarse = torch.rand(batch, 3, size // 8, size // 8, generator=generator)
        summer = 2 * F.interpolate(coarse, size=(size, size), mode="bilinear") - 1
        yield summer, (0.5 * summer.mean(1, keepdim=True) + 0.3).expand_as(summer)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=draw("width", 8, 10))
    parser.add_argument("--judge-width", type=int, default=draw("judge", 28, 32))
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    translation = Translation(args)
    data = seasons(args.batch, args.size, dist.get_rank())
    for step in range(1, args.steps + 1):
        of_judge, of_painter = translation.step(*next(data))
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: judge {of_judge.item():.3f}, painter {of_painter.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
