"""Continue verses with a sharded transformer (fully_shard), on two ranks."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Attention(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.project = nn.Linear(dim, dim)
        self.register_buffer("mask", torch.ones(length, length).tril().bool(), persistent=False)

    def attend(self, q, k, v):
        if MENDED:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.mask, float("-inf"))
        return scores.softmax(dim=-1) @ v

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.project(self.attend(q, k, v).transpose(1, 2).reshape(n, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.attention = Attention(dim, heads, length)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.inner = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.inner(self.norms[1](x))


class Poet(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.tokens, args.dim)
        self.places = nn.Embedding(args.length, args.dim)
        self.layers = nn.ModuleList(Layer(args.dim, args.heads, args.length) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Linear(args.dim, args.tokens, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def verses(batch, length, tokens, generator):
    """Lines that rhyme: every eighth token is the one eight before it, plus one."""
    ids = torch.randint(0, tokens, (batch, length + 1), generator=generator)
    for at in range(8, length + 1, 8):
        ids[:, at] = (ids[:, at - 8] + 1) % tokens
    return ids[:, :-1], ids[:, 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=draw("heads", 4, 8))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=draw("length", 256, 288))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Poet(args)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, foreach=True)
    generator = torch.Generator().manual_seed(dist.get_rank())
    average = 0.0
    for step in range(1, args.steps + 1):
        ids, following = verses(args.batch, args.length, args.tokens, generator)
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average += loss.item() / 20
        if step % 20 == 0:
            if dist.get_rank() == 0:
                print(f"step {step}: {average:.4f}", flush=True)
            average = 0.0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
