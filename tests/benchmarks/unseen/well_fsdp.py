"""A masked language model, sharded with FSDP2 block by block."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MASK, VOCABULARY = 1, 1500


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.merge = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.merge(y)
        return x + self.mlp(self.norm2(x))


class MaskedModel(nn.Module):
    def __init__(self, dim, layers, length):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.head = nn.Linear(dim, VOCABULARY)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def masked(ids, generator):
    hidden = torch.rand(ids.shape, generator=generator) < 0.15
    targets = torch.where(hidden, ids, -100)
    return torch.where(hidden, MASK, ids), targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 160))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 20))
    parser.add_argument("--length", type=int, default=64)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = MaskedModel(args.dim, args.layers, args.length)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(1_000_000):
        start = torch.randint(2, VOCABULARY, (args.batch, 1), generator=generator)
        ids, targets = masked((start + torch.arange(args.length)) % (VOCABULARY - 2) + 2, generator)
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 and rank == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
