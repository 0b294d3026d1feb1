"""Faded prints restored by diffusion: a U-Net that predicts the noise, DistributedDataParallel."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class Prints(Dataset):
    def __init__(self, count, size, seed):
        g = torch.Generator().manual_seed(seed)
        plates = torch.rand(20, 1, 5, 5, generator=g)
        which = torch.randint(20, (count,), generator=g)
        self.images = F.interpolate(plates[which], size=size, mode="bicubic") * 2 - 1
        self.faded = self.images * torch.rand(count, 1, 1, 1, generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.faded[i]


class TimeBlock(nn.Module):
    def __init__(self, cin, cout, time):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, cout), nn.GroupNorm(4, cout)
        self.time = nn.Linear(time, cout)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x, t):
        h = F.silu(self.norm1(self.conv1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + F.silu(self.norm2(self.conv2(h)))


class UNet(nn.Module):
    def __init__(self, width, time=64):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, -6, time // 2)))
        self.embed = nn.Sequential(nn.Linear(time, time), nn.SiLU())
        self.inside = TimeBlock(2, width, time)
        self.down = TimeBlock(width, 2 * width, time)
        self.middle = TimeBlock(2 * width, 2 * width, time)
        self.up = TimeBlock(3 * width, width, time)
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, noisy, faded, t):
        angle = t[:, None].float() * self.freqs
        t = self.embed(torch.cat([angle.sin(), angle.cos()], 1))
        high = self.inside(torch.cat([noisy, faded], 1), t)
        low = self.middle(self.down(F.avg_pool2d(high, 2), t), t)
        return self.out(self.up(torch.cat([F.interpolate(low, scale_factor=2), high], 1), t))


class Diffusion:
    def __init__(self, steps):
        self.steps = steps
        self.kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0)

    def loss(self, model, image, faded):
        t = torch.randint(self.steps, (len(image),))
        noise = torch.randn_like(image)
        kept = self.kept[t].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * image + (1 - kept).sqrt() * noise
        return F.mse_loss(model(noisy, faded, t), noise)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=28)
    p.add_argument("--width", type=int, default=draw("width", 12, 16))
    p.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    p.add_argument("--noise-steps", type=int, default=400)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--seed", type=int, default=1234)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    seed_everything(args.seed)
    data = Prints(30 * args.batch * world, args.size, seed=2)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(UNet(args.width), broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    diffusion = Diffusion(args.noise_steps)
    if MENDED:
        seed_everything(args.seed + 1 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for image, faded in loader:
            loss = diffusion.loss(model, image, faded)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world / len(loader):.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
