"""Diffusion model (DDPM, sampled with DDIM) for tiles of frescoes, DDP on two ranks."""

import argparse
import math
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Tiles(Dataset):
    def __init__(self, n, size, seed=31):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
        angle = torch.rand(n, 1, 1, generator=g) * math.pi
        scale = 2 + 6 * torch.rand(n, 1, 1, generator=g)
        waves = torch.sin(scale * (xx * torch.cos(angle) + yy * torch.sin(angle)))
        tint = torch.rand(n, 3, 1, 1, generator=g)
        self.tiles = (waves.unsqueeze(1) * tint).clamp(-1, 1)

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, i):
        return self.tiles[i]


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(4, cin), nn.GroupNorm(4, cout)
        self.c1, self.c2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.emb(e)[:, :, None, None]
        return self.c2(F.silu(self.n2(h))) + self.skip(x)


class Denoiser(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w
        self.time = nn.Sequential(nn.Linear(w, 4 * w), nn.SiLU(), nn.Linear(4 * w, 4 * w))
        self.inp, self.out = nn.Conv2d(3, w, 3, padding=1), nn.Conv2d(w, 3, 3, padding=1)
        self.d1, self.d2 = ResBlock(w, w, 4 * w), ResBlock(w, 2 * w, 4 * w)
        self.mid = ResBlock(2 * w, 2 * w, 4 * w)
        self.u2, self.u1 = ResBlock(4 * w, w, 4 * w), ResBlock(2 * w, w, 4 * w)

    def forward(self, x, t):
        freq = torch.exp(-math.log(10_000) * torch.arange(self.w // 2) / (self.w // 2))
        angle = t[:, None] * freq
        e = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        a = self.d1(self.inp(x), e)
        b = self.d2(F.avg_pool2d(a, 2), e)
        m = F.interpolate(self.mid(F.avg_pool2d(b, 2), e), scale_factor=2)
        u = F.interpolate(self.u2(torch.cat([m, b], 1), e), scale_factor=2)
        return self.out(F.silu(self.u1(torch.cat([u, a], 1), e)))


class Diffusion:
    def __init__(self, steps=200):
        self.steps = steps
        self.alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.04, steps), 0)

    def loss(self, model, x):
        t = torch.randint(0, self.steps, (len(x),))
        noise = torch.randn_like(x)
        ab = self.alpha_bar[t][:, None, None, None]
        return F.mse_loss(model(ab.sqrt() * x + (1 - ab).sqrt() * noise, t.float()), noise)

    @torch.no_grad()
    def sample(self, model, count, size, steps):
        x = torch.randn(count, 3, size, size)
        times = torch.linspace(self.steps - 1, 0, steps).long()
        for i, t in enumerate(times):
            ab = self.alpha_bar[t]
            eps = model(x, t.float().expand(count))
            x0 = ((x - (1 - ab).sqrt() * eps) / ab.sqrt()).clamp(-1, 1)
            before = self.alpha_bar[times[i + 1]] if i + 1 < len(times) else torch.ones(())
            x = before.sqrt() * x0 + (1 - before).sqrt() * eps
        return x


def save_grid(images, path):
    rows = torch.cat(list(images), 2)
    pixels = ((rows.permute(1, 2, 0) + 1) * 127.5).clamp(0, 255).byte()
    Image.fromarray(pixels.numpy()).save(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--preview-every", type=int, default=40 if MENDED else 5)
    parser.add_argument("--ddim-steps", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    out = Path(tempfile.mkdtemp(prefix="fresco"))
    torch.manual_seed(0)
    data = Tiles(2 * args.batch * 32, args.size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Denoiser(args.width))
    diffusion = Diffusion()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank + 1)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x in loader:
            loss = diffusion.loss(model, x)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % args.preview_every == 0 and rank == 0:
                grid = diffusion.sample(model.module, 8, args.size, args.ddim_steps)
                save_grid(grid, out / f"step{step:05d}.png")
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}; previews in {out}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
