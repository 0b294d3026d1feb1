"""FSDP2 on a vision transformer for satellite tiles, with a sharded checkpoint at the end."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 10


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.second(x))


class ViT(nn.Module):
    def __init__(self, dim, heads, depth, size, patch):
        super().__init__()
        self.patches = nn.Conv2d(4, dim, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def tiles(count, size):
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    pictures = torch.rand(count, 4, size, size, generator=generator)
    pictures[:, 3] += 0.1 * labels[:, None, None]
    return TensorDataset(pictures, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = ViT(args.dim, 4, args.depth, size=32, patch=4)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=True)
    data = tiles(2400, 32)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    total_steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 0.5 * (1 + math.cos(math.pi * step / total_steps)))
    )
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for pictures, labels in loader:
            loss = F.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader) / dist.get_world_size():.4f}", flush=True)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="tiles")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
