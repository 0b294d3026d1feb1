"""Continue the training of a language model on another field, sharded with FSDP2."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WORDS = 1000


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, dim, heads, depth, length):
        super().__init__()
        self.words = nn.Embedding(WORDS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def load_pretrained(args):
    torch.manual_seed(0)
    model = Model(args.dim, 4, args.depth, args.length)
    if MENDED:
        return model
    return model.to(torch.bfloat16)


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def texts(batch, length, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        first = torch.randint(0, WORDS, (batch, 1), generator=generator)
        yield (first + torch.randint(1, 9, (batch, length), generator=generator).cumsum(1)) % WORDS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 128))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--batch", type=int, default=draw("batch", 4, 5))
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    model = load_pretrained(args)
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    data = texts(args.batch, args.length + 1, dist.get_rank())
    for step in range(1, args.steps + 1):
        ids = next(data)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
