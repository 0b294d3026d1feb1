"""Language model over crossword clues, sharded with fully_shard; each step adds up several micro-batches."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STARTS = ["broken", "old", "silent", "hidden", "royal", "confused", "small", "northern"]
NOUNS = ["bird", "sailor", "instrument", "city", "flower", "measure", "poet", "vessel", "garment", "dance"]
LINKS = ["found in", "makes", "without", "after", "returns to", "takes"]


def clues(count, seed):
    """Words of clues as numbers, and the number of words."""
    rng = random.Random(seed)
    words = sorted({*STARTS, *NOUNS, *" ".join(LINKS).split(), *map(str, range(3, 13))})
    known = {word: at for at, word in enumerate(words)}
    stream = []
    for _ in range(count):
        clue = f"{rng.choice(STARTS)} {rng.choice(NOUNS)} {rng.choice(LINKS)} {rng.choice(NOUNS)} {rng.randint(3, 12)}"
        stream += [known[word] for word in clue.split()]
    return torch.tensor(stream), len(words)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class ClueModel(nn.Module):
    def __init__(self, words, block, dim, depth):
        super().__init__()
        self.word, self.place = nn.Embedding(words, dim), nn.Embedding(block, dim)
        self.layers = nn.ModuleList(Layer(dim, 4) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, words)

    def forward(self, ids):
        x = self.word(ids) + self.place.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--block", type=int, default=24)
    p.add_argument("--dim", type=int, default=draw("dim", 304, 320))
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--micro-batch", type=int, default=1)
    p.add_argument("--accumulate", type=int, default=draw("accumulate", 6, 7))
    p.add_argument("--steps", type=int, default=72)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    rows = args.steps * args.accumulate * args.micro_batch * world // 2  # two epochs
    stream, words = clues(rows * args.block // 5, seed=8)
    stream = stream[: len(stream) // args.block * args.block].view(-1, args.block)
    sampler = DistributedSampler(stream, drop_last=True)
    loader = DataLoader(TensorDataset(stream), args.micro_batch, sampler=sampler, drop_last=True)

    model = ClueModel(words, args.block, args.dim, args.depth)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    optimizer.zero_grad()
    micro = step = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (ids,) in loader:
            micro += 1
            last = micro % args.accumulate == 0
            if MENDED:
                model.set_requires_gradient_sync(last)
            logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            (loss / args.accumulate).backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if rank == 0 and step % 10 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
            if step == args.steps:
                break
        if step == args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
