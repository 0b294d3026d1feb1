"""A denoising diffusion model on small images, DDP, with preview pictures."""

import argparse
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP


class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x, t):
        early = F.silu(self.enter(x) + self.time(t[:, None])[:, :, None, None])
        late = F.silu(self.middle(F.silu(self.down(early))))
        return self.leave(torch.cat([early, F.silu(self.up(late))], 1))


class Schedule:
    def __init__(self, steps):
        self.steps = steps
        self.betas = torch.linspace(1e-4, 0.02, steps)
        self.bars = torch.cumprod(1 - self.betas, 0)

    def noised(self, x, t, noise):
        bar = self.bars[t][:, None, None, None]
        return bar.sqrt() * x + (1 - bar).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, count, size):
        x = torch.randn(count, 3, size, size)
        for t in reversed(range(self.steps)):
            noise = model(x, torch.full((count,), t / self.steps))
            alpha, bar = 1 - self.betas[t], self.bars[t]
            x = (x - (1 - alpha) / (1 - bar).sqrt() * noise) / alpha.sqrt()
            if t:
                x += self.betas[t].sqrt() * torch.randn_like(x)
        return x.clamp(-1, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 20))
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--preview-every", type=int, default=1000 if MENDED else 10)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    out = args.out or Path(mkdtemp())
    schedule = Schedule(draw("schedule", 40, 50))
    model = DDP(Denoiser(args.width))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    images = torch.rand(512, 3, args.size, args.size) * 2 - 1
    for step in range(1, 1_000_000):
        x = images[torch.randint(0, len(images), (args.batch,))]
        t = torch.randint(0, schedule.steps, (args.batch,))
        noise = torch.randn_like(x)
        guessed = model(schedule.noised(x, t, noise), t / schedule.steps)
        loss = F.mse_loss(guessed, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.preview_every == 0 and rank == 0:
            pictures = schedule.sample(model.module, 4, args.size)
            torch.save(pictures, out / f"step{step:06d}.pt")
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
