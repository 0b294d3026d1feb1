"""Laying patterns of cobblestones: a vision transformer with registers, sharded with fully_shard on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

PATTERNS = ["row", "running bond", "fan", "diagonal", "herringbone"]


def streets(count, size, seed):
    """Joints between stones, in grey, turned by a small angle."""
    g = torch.Generator().manual_seed(seed)
    pattern = torch.randint(len(PATTERNS), (count,), generator=g)
    y, x = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    angle = 0.2 * torch.randn(count, 1, 1, generator=g)
    u, v = x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()
    bond = u + 3 * ((v // 6) % 2)
    fan = (u**2 + (v - size) ** 2).sqrt()
    kinds = torch.stack([u, bond, fan, u + v, u + v * (1 - 2 * ((u // 6) % 2))], 1)
    across = kinds[torch.arange(count), pattern] % 6 < 1
    photo = 0.5 - 0.8 * (across | (v % 6 < 1)).float() + 0.3 * torch.randn(count, size, size, generator=g)
    return photo.unsqueeze(1), pattern


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.scale1, self.scale2 = nn.Parameter(0.1 * torch.ones(dim)), nn.Parameter(0.1 * torch.ones(dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.scale1 * self.proj(y)
        return x + self.scale2 * self.mlp(self.norm2(x))


class StreetViT(nn.Module):
    def __init__(self, size, patch, dim, depth, registers=3):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, dim))
        self.registers = nn.Parameter(0.02 * torch.randn(1 + registers, dim))
        self.layers = nn.ModuleList(Layer(dim, 4) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, len(PATTERNS))

    def forward(self, photo):
        x = self.patches(photo).flatten(2).transpose(1, 2) + self.place
        x = torch.cat([self.registers.expand(len(x), -1, -1), x], 1)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x[:, 0]))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for photo, pattern in loader:
        counts += torch.tensor([(model(photo).argmax(1) == pattern).sum().item(), len(photo)])
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=36)
    p.add_argument("--patch", type=int, default=6)
    p.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(16)
    train = TensorDataset(*streets(40 * world * args.batch, args.size, seed=1))
    test = TensorDataset(*streets(8 * world * args.batch, args.size, seed=2))
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    check = DataLoader(test, args.batch, sampler=DistributedSampler(test, shuffle=False))
    model = StreetViT(args.size, args.patch, args.dim, args.depth)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4, weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 12)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader) - 12)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [12])
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for photo, pattern in loader:
            loss = F.cross_entropy(model(photo), pattern, label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
        right = validate(model, check)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader):.4f} right {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
