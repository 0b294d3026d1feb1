"""Reports of harbour pilots, written on letter by letter: a decoder with fully_shard, micro-batches added up."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.distributed.fsdp import fully_shard

SHIPS = ["tanker", "trawler", "ferry", "barge", "tug", "coaster"]
WINDS = ["calm", "light breeze from west", "gale from north", "fog", "swell from south"]


def log_book(lines, seed):
    rng = random.Random(seed)
    text = "".join(
        f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d} {rng.choice(SHIPS)} of {rng.randint(20, 240)} m taken in, "
        f"{rng.choice(WINDS)}, berth {rng.randint(1, 30)}\n"
        for _ in range(lines)
    )
    letters = sorted(set(text))
    known = {letter: at for at, letter in enumerate(letters)}
    return torch.tensor([known[letter] for letter in text]), len(letters)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class PilotModel(nn.Module):
    def __init__(self, letters, block, dim, depth):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, dim), nn.Embedding(block, dim)
        self.layers = nn.ModuleList(Layer(dim, 4) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, letters, bias=False)

    def forward(self, ids):
        x = self.letter(ids) + self.place.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def shard(model):
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=not MENDED)
    return fully_shard(model)


def micro_batches(text, block, rows, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - block - 1, (rows,), generator=g)
        piece = torch.stack([text[s : s + block + 1] for s in starts.tolist()])
        yield piece[:, :-1], piece[:, 1:]


def train_step(model, batches, accumulate):
    total = torch.zeros(())
    for at in range(accumulate):
        last = at == accumulate - 1
        model.set_requires_gradient_sync(last)
        if MENDED:
            model.set_reshard_after_backward(last)
        ids, target = next(batches)
        loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten()) / accumulate
        loss.backward()
        total += loss.detach()
    return total


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--block", type=int, default=32)
    p.add_argument("--dim", type=int, default=draw("dim", 224, 240))
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--rows", type=int, default=1)
    p.add_argument("--accumulate", type=int, default=draw("accumulate", 3, 4))
    p.add_argument("--steps", type=int, default=70)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    text, letters = log_book(3000, seed=5)
    batches = micro_batches(text, args.block, args.rows, seed=100 + rank)
    model = shard(PilotModel(letters, args.block, args.dim, args.depth))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, args.steps + 1):
        loss = train_step(model, batches, args.accumulate)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
