"""Flow matching on images with averaged weights, DDP."""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self, width, time):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.one, self.two = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.shift = nn.Linear(time, width)

    def forward(self, x, t):
        y = self.one(F.silu(self.norm(x))) + self.shift(t)[:, :, None, None]
        return x + self.two(F.silu(y))


class Velocity(nn.Module):
    def __init__(self, width, depth, time=64):
        super().__init__()
        self.register_buffer("waves", torch.exp(torch.linspace(0, 6, time // 2)))
        self.enter = nn.Conv2d(3, width, 3, 2, 1)
        self.blocks = nn.ModuleList(Block(width, time) for _ in range(depth))
        self.leave = nn.ConvTranspose2d(width, 3, 4, 2, 1)

    def forward(self, x, t):
        phase = t[:, None] * self.waves
        t = torch.cat([phase.sin(), phase.cos()], 1)
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, t)
        return self.leave(x)


class Averaged:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False), decay
        self.mine, self.theirs = list(self.model.parameters()), list(model.parameters())

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.mine, self.theirs, 1 - self.decay)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=draw("width", 40, 48))
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 12, 16))
    parser.add_argument("--size", type=int, default=32)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Velocity(args.width, args.depth))
    averaged = Averaged(model.module, 0.999)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    torch.manual_seed(1 + rank)
    images = torch.rand(1024, 3, args.size, args.size) * 2 - 1
    for step in range(1_000_000):
        x = images[torch.randint(0, len(images), (args.batch,))]
        noise, t = torch.randn_like(x), torch.rand(args.batch)
        place = t[:, None, None, None]
        guessed = model(place * x + (1 - place) * noise, t)
        loss = F.mse_loss(guessed, x - noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update()
        if rank == 0 and step % 100 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
