"""Outline glaciers in radar pictures with a vision transformer, sharded with FSDP2 on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(self.before(x)).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class Outliner(nn.Module):
    def __init__(self, size, patch, dim, depth):
        super().__init__()
        self.patches = nn.Conv2d(2, dim, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, dim))
        self.layers = nn.ModuleList(Layer(dim, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, patch * patch)
        self.patch = patch

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return F.pixel_shuffle(self.head(self.norm(x)).transpose(1, 2).unflatten(2, self.shape(pictures)), self.patch)

    def shape(self, pictures):
        return [side // self.patch for side in pictures.shape[2:]]


def scenes(batch, size, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        coarse = torch.randn(batch, 1, 5, 5, generator=generator)
        ice = (F.interpolate(coarse, size=size, mode="bilinear") > 0).float()
        yield torch.cat([ice, 1 - ice], 1) + 0.8 * torch.randn(batch, 2, size, size, generator=generator), ice


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch", type=int, default=draw("batch", 8, 10))
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Outliner(args.size, 8, args.dim, args.depth)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=MENDED)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=args.steps)
    data = scenes(args.batch, args.size, dist.get_rank())
    for step in range(1, args.steps + 1):
        pictures, ice = next(data)
        loss = F.binary_cross_entropy_with_logits(model(pictures), ice)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
