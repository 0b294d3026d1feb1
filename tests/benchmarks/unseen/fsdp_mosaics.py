"""Name the workshop that laid a mosaic: a small vision transformer, sharded over two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORKSHOPS = 9


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Mosaics(nn.Module):
    def __init__(self, dim, layers, size, patch):
        super().__init__()
        self.enter = nn.Conv2d(3, dim, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, dim))
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, WORKSHOPS)

    def forward(self, pictures):
        x = self.enter(pictures).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def mosaics(count, size):
    """Each workshop has tiles of its own colours."""
    generator = torch.Generator().manual_seed(19)
    workshop = torch.randint(0, WORKSHOPS, (count,), generator=generator)
    colours = torch.rand(WORKSHOPS, 5, 3, generator=generator)
    tiles = torch.randint(0, 5, (count, size // 4, size // 4), generator=generator)
    pictures = colours[workshop[:, None, None], tiles].permute(0, 3, 1, 2)
    pictures = F.interpolate(pictures, size=size, mode="nearest")
    return TensorDataset(pictures + 0.3 * torch.randn(pictures.shape, generator=generator), workshop)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Mosaics(args.dim, args.layers, args.size, 5)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / args.warmup))
    data = mosaics(1920, args.size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for pictures, workshop in loader:
            loss = F.cross_entropy(model(pictures), workshop, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            step += 1
            if step % 40 == 0:
                shown = norm.full_tensor().item()
                if dist.get_rank() == 0:
                    print(f"step {step}: {loss.item():.4f}, gradient {shown:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
