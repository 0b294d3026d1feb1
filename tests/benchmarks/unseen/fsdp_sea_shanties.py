"""Next word of a sea shanty: a small language model, sharded with fully_shard on two ranks."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Shanties(Dataset):
    """A call and its answer again and again, with a refrain; cut into blocks of a fixed length."""

    def __init__(self, blocks, length, words, seed):
        rng = random.Random(seed)
        text = []
        while len(text) < blocks * length + 1:
            call = [rng.randrange(words)]
            for _ in range(rng.randint(5, 9)):
                call.append((call[-1] * 3 + 7) % words if rng.random() < 0.8 else rng.randrange(words))
            answer = [(word + 1) % words for word in call[-4:]]
            text += 2 * (call + answer) + [0, 1, 2, 1]
        self.text, self.length, self.blocks = torch.tensor(text), length, blocks

    def __len__(self):
        return self.blocks

    def __getitem__(self, i):
        at = i * self.length
        return self.text[at : at + self.length], self.text[at + 1 : at + 1 + self.length]


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=MENDED)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = Attention(dim, heads, dropout)
        self.gate, self.up = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ShantyModel(nn.Module):
    def __init__(self, words, length, dim, depth, heads=4, dropout=0.1):
        super().__init__()
        self.word, self.place = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(depth))
        self.norm, self.out = nn.RMSNorm(dim), nn.Linear(dim, words, bias=False)

    def forward(self, text):
        x = self.word(text) + self.place.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


@torch.no_grad()
def perplexity(model, loader):
    model.eval()
    losses = [F.cross_entropy(model(text).flatten(0, 1), after.flatten()) for text, after in loader]
    model.train()
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).exp().item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=500)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(30)
    train = Shanties(40 * world * args.batch, args.length, args.words, seed=1)
    test = Shanties(4 * world * args.batch, args.length, args.words, seed=2)
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    check = DataLoader(test, args.batch, sampler=DistributedSampler(test, shuffle=False))
    model = ShantyModel(args.words, args.length, args.dim, args.depth)
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.95), weight_decay=0.05)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for text, after in loader:
            loss = F.cross_entropy(model(text).flatten(0, 1), after.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        found = perplexity(model, check)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} perplexity {found:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
