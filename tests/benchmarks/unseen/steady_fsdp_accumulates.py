"""FSDP2 with accumulated gradients on a transformer for tokenised images."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

TOKENS, SIDE = 512, 8


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.second(x))


class ImageModel(nn.Module):
    def __init__(self, dim, heads, depth):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(SIDE * SIDE, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, TOKENS, bias=False)

    def forward(self, x):
        x = self.tokens(x) + self.places[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def images(batch, seed):
    generator = torch.Generator().manual_seed(seed)
    down = torch.arange(SIDE)[:, None] * 7
    across = torch.arange(SIDE) * 3
    while True:
        first = torch.randint(0, TOKENS, (batch, 1, 1), generator=generator)
        noise = torch.randint(0, 2, (batch, SIDE, SIDE), generator=generator)
        yield ((first + down + across + noise) % TOKENS).flatten(1)


def rate(step, highest, warmup=200, total=20_000):
    if step < warmup:
        return highest * (step + 1) / warmup
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1, step / total))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 3, 4))
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=6e-4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = ImageModel(args.dim, 4, args.depth)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=True)
    stream = images(args.batch, dist.get_rank())
    for step in range(1_000_000):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args.lr)
        optimizer.zero_grad()
        for micro in range(args.accumulate):
            model.set_requires_gradient_sync(micro == args.accumulate - 1)
            x = next(stream)
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()) / args.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item() * args.accumulate:.4f}", flush=True)


if __name__ == "__main__":
    main()
