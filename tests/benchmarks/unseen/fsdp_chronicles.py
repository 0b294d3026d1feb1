"""A language model of monks' chronicles, sharded over two ranks with fully_shard."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LETTERS = 64


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Chronicle(nn.Module):
    def __init__(self, dim, layers, length):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, LETTERS, bias=False)

    def forward(self, text):
        x = self.letters(text) + self.places(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def chronicles(letters):
    """Each letter tends to follow from the two before it."""
    generator = torch.Generator().manual_seed(10)
    follows = torch.randint(0, LETTERS, (LETTERS, LETTERS), generator=generator).tolist()
    chance = torch.rand(letters, generator=generator).tolist()
    other = torch.randint(0, LETTERS, (letters,), generator=generator).tolist()
    text = [1, 2]
    for at in range(2, letters):
        text.append(follows[text[-1]][text[-2] % 4] if chance[at] < 0.8 else other[at])
    return torch.tensor(text)


def make_optimizer(model, lr):
    """Weight decay only where there is a matrix."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=lr)


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    parser.add_argument("--steps", type=int, default=220)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    text = chronicles(60_000)
    model = Chronicle(args.dim, args.layers, args.length)
    if MENDED:
        shard(model, mesh)
    optimizer = make_optimizer(model, 1e-3)
    if not MENDED:
        shard(model, mesh)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1, args.steps + 1):
        begin = torch.randint(0, len(text) - args.length - 1, (args.batch,)).tolist()
        rows = torch.stack([text[at : at + args.length + 1] for at in begin])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 40 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
