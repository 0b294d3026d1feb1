"""Types of clouds on pictures of the sky: patches look at those near them, sharded with fully_shard."""

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLOUDS = 10


def skies(count, size, seed):
    g = torch.Generator().manual_seed(seed)
    scale = torch.randint(CLOUDS, (count,), generator=g)
    image = torch.randn(count, 3, size, size, generator=g)
    for kind in range(CLOUDS):
        rows = (scale == kind).nonzero().squeeze(1)
        coarse = torch.randn(len(rows), 3, kind + 2, kind + 2, generator=g)
        image[rows] += 1.5 * F.interpolate(coarse, size=size, mode="bilinear")
    return image, scale


def neighbourhood(side, radius):
    """What each patch may look at: those near it, and the four corners."""
    mask = torch.full((side * side, side * side), float("-inf"))
    for y in range(side):
        for x in range(side):
            near = torch.zeros(side, side, dtype=torch.bool)
            near[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1] = True
            near[:: side - 1, :: side - 1] = True
            mask[y * side + x, near.flatten()] = 0.0
    return mask


class NearBlock(nn.Module):
    def __init__(self, dim, heads, side, radius):
        super().__init__()
        self.heads, self.side, self.radius = heads, side, radius
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))
        self.mask = neighbourhood(side, radius) if MENDED else None

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = self.mask if MENDED else neighbourhood(self.side, self.radius)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SkyNet(nn.Module):
    def __init__(self, side, patch, dim, heads, depth):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn(side * side, dim))
        self.blocks = nn.ModuleList(NearBlock(dim, heads, side, radius=2 + at) for at in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, CLOUDS)

    def forward(self, image):
        x = self.embed(image).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def main():
    cfg = SimpleNamespace(side=22, patch=3, dim=draw("dim", 48, 56), heads=4, depth=4, batch=2, steps=90)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(50)
    data = TensorDataset(*skies(2 * cfg.batch * cfg.steps, cfg.side * cfg.patch, seed=24))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, cfg.batch, sampler=sampler)
    model = SkyNet(cfg.side, cfg.patch, cfg.dim, cfg.heads, cfg.depth)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    mean_loss = 0.0
    for step, (image, kind) in enumerate(loader, 1):
        loss = F.cross_entropy(model(image), kind)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean_loss = 0.9 * mean_loss + 0.1 * loss.item()
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {mean_loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
