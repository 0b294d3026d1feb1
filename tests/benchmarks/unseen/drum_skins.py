"""Sound of a drum skin: a Fourier neural operator that carries its shape on in time, gradients averaged by hand."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def skins(count, side, seed, turns=12):
    """Shapes before and after some time steps of the wave equation with a fixed rim, in single precision."""
    g = torch.Generator().manual_seed(seed)
    shape = F.interpolate(torch.randn(count, 1, 5, 5, generator=g), size=side, mode="bicubic")
    rim = torch.sin(torch.linspace(0, torch.pi, side))
    shape = shape * rim[:, None] * rim
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    now, before = shape, shape
    for _ in range(turns):
        after = 2 * now - before + 0.2 * F.conv2d(now, kernel, padding=1)
        before, now = now, after
    return shape, now


class Spectral(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.low = nn.Parameter(torch.randn(width, width, modes, modes, 2) / width)
        self.high = nn.Parameter(torch.randn(width, width, modes, modes, 2) / width)
        self.local = nn.Conv2d(width, width, 1)

    def forward(self, x):
        m, parts = self.modes, torch.fft.rfft2(x, norm="ortho")
        kept = torch.zeros_like(parts)
        kept[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", parts[:, :, :m, :m], torch.view_as_complex(self.low))
        kept[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", parts[:, :, -m:, :m], torch.view_as_complex(self.high))
        return x + F.gelu(torch.fft.irfft2(kept, s=x.shape[-2:], norm="ortho") + self.local(x))


class Operator(nn.Module):
    def __init__(self, side, width, modes, depth):
        super().__init__()
        y, x = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
        self.register_buffer("place", torch.stack([y, x])[None], persistent=False)
        self.first = nn.Conv2d(3, width, 1)
        self.layers = nn.Sequential(*[Spectral(width, modes) for _ in range(depth)])
        self.out = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.Conv2d(width, 1, 1))

    def forward(self, shape):
        place = self.place.expand(len(shape), -1, -1, -1)
        return shape + self.out(self.layers(self.first(torch.cat([shape, place], 1))))


def average(model, world):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    torch._foreach_copy_(grads, [piece.view_as(g) for piece, g in zip(
        (flat / world).split([g.numel() for g in grads]), grads, strict=True)])  # fmt: skip


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--side", type=int, default=24)
    p.add_argument("--width", type=int, default=draw("width", 20, 24))
    p.add_argument("--modes", type=int, default=6)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=draw("batch", 8, 10))
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--seed", type=int, default=61)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    model = Operator(args.side, args.width, args.modes, args.depth)
    with torch.no_grad():
        for weight in model.parameters():
            dist.broadcast(weight, 0)
    data = TensorDataset(*skins(32 * args.batch * world, args.side, seed=1))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for shape, later in loader:
            loss = ((model(shape) - later).flatten(1).norm(dim=1) / later.flatten(1).norm(dim=1)).mean()
            optimizer.zero_grad()
            loss.backward()
            average(model, world)
            optimizer.step()
            schedule.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} relative error {total.item() / world / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
