"""Language model over texts of postcards, sharded with fully_shard; the wrapping goes through all modules."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PLACES = ["the lake", "the old town", "the harbour", "a small inn", "the mountains", "grandmother's house"]
DOINGS = ["we swim every day", "it rains", "the food is good", "we walked for hours", "the children are well"]
ENDS = ["kisses", "see you soon", "write to us", "wish you were here"]


def postcards(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        yield f"Dear {rng.choice('ABCDEFG')}., from {rng.choice(PLACES)}: {rng.choice(DOINGS)}. {rng.choice(ENDS)}!\n"


class Blocks(Dataset):
    def __init__(self, block, count, seed=9):
        text = "".join(postcards(count * block // 50, seed)).encode()
        ids = torch.tensor(list(text))
        whole = (len(ids) - 1) // block * block
        self.x, self.y = ids[:whole].view(-1, block), ids[1 : whole + 1].view(-1, block)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class PostcardLM(nn.Module):
    def __init__(self, dim, heads, depth, block):
        super().__init__()
        self.embed, self.place = nn.Embedding(256, dim), nn.Embedding(block, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, 256, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.place.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shard(model):
    kinds = (Block,) if MENDED else (nn.Linear, nn.RMSNorm, Block)
    for module in reversed(list(model.modules())):
        if isinstance(module, kinds):
            fully_shard(module)
    return fully_shard(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--steps", type=int, default=90)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Blocks(args.block, 2 * args.batch * 45)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = shard(PostcardLM(args.dim, args.heads, args.depth, args.block))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=15)
    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm.step()
            step += 1
            if step % 30 == 0:
                shown = loss.detach().clone()
                dist.all_reduce(shown)
                if rank == 0:
                    print(f"step {step} loss {shown.item() / dist.get_world_size():.4f}", flush=True)
            if step == args.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
