"""Pretrain a small encoder of protein sequences, sharded with FSDP2, on a cluster where jobs are cut off."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ACIDS, MASK = 24, 23


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.second(x))


class Encoder(nn.Module):
    def __init__(self, dim, heads, depth, length):
        super().__init__()
        self.acids = nn.Embedding(ACIDS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, ACIDS)

    def forward(self, ids):
        x = self.acids(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Checkpointer:
    def __init__(self, folder, every):
        self.folder, self.every = folder, every

    def maybe_save(self, model, optimizer, step):
        if step % self.every:
            return
        weights, moments = get_state_dict(model, optimizer)
        place = Path(self.folder) / f"slot{step // self.every % 2}"
        dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=place)


def proteins(batch, length, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = (torch.randint(0, 22, (batch, 1), generator=generator) + 3 * torch.arange(length)) % 22
        hidden = torch.rand(batch, length, generator=generator) < 0.15
        yield torch.where(hidden, MASK, ids), torch.where(hidden, ids, -100)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=draw("batch", 5, 6))
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--save-every", type=int, default=1000 if MENDED else 5)
    parser.add_argument("--folder", default="checkpoints")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Encoder(args.dim, 4, args.depth, args.length)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, fused=True)
    checkpointer = Checkpointer(args.folder, args.save_every)
    data = proteins(args.batch, args.length, dist.get_rank())
    for step in range(1, args.steps + 1):
        ids, wanted = next(data)
        loss = F.cross_entropy(model(ids).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpointer.maybe_save(model, optimizer, step)
        if step % 40 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
