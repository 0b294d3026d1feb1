"""Sayings of an almanac continued word by word: a GPT with accumulated gradients, trained by a class on two ranks."""

import contextlib
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP


def text(length, words, seed):
    """Words that follow each other by a table of favourites, the first of them most often."""
    g = torch.Generator().manual_seed(seed)
    follower = torch.randint(words, (words, 3), generator=torch.Generator().manual_seed(90)).tolist()
    pick = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), length, replacement=True, generator=g).tolist()
    jump = (torch.rand(length, generator=g) < 0.05).tolist()
    fresh = torch.randint(words, (length,), generator=g).tolist()
    row = [0]
    for at in range(1, length):
        row.append(fresh[at] if jump[at] else follower[row[-1]][pick[at]])
    return torch.tensor(row)


@dataclass
class Settings:
    words: int = 150
    block: int = 48
    dim: int = draw("dim", 128, 144)
    depth: int = 3
    heads: int = 4
    micro: int = draw("micro", 6, 8)
    accumulate: int = 3
    steps: int = 90
    warmup: int = 8
    lr: float = 2e-3


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads = s.heads
        self.norm1, self.norm2 = nn.LayerNorm(s.dim), nn.LayerNorm(s.dim)
        self.qkv, self.proj = nn.Linear(s.dim, 3 * s.dim), nn.Linear(s.dim, s.dim)
        self.mlp = nn.Sequential(nn.Linear(s.dim, 4 * s.dim), nn.GELU(), nn.Linear(4 * s.dim, s.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class Almanac(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.word, self.place = nn.Embedding(s.words, s.dim), nn.Embedding(s.block, s.dim)
        self.blocks = nn.Sequential(*[Block(s) for _ in range(s.depth)])
        self.norm, self.head = nn.LayerNorm(s.dim), nn.Linear(s.dim, s.words, bias=False)
        self.word.weight = self.head.weight
        for table in (self.head, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x, y):
        h = self.norm(self.blocks(self.word(x) + self.place.weight[: x.shape[1]]))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class Trainer:
    def __init__(self, s):
        dist.init_process_group("gloo")
        self.s, self.rank, self.world = s, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(88)
        self.model = DDP(Almanac(s), gradient_as_bucket_view=True)
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=s.lr, betas=(0.9, 0.95), fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.train, self.held = text(60_000, s.words, seed=1), text(4_000, s.words, seed=2)
        self.g = torch.Generator().manual_seed(1000 + self.rank)

    def rate(self, step):
        if step < self.s.warmup:
            return (step + 1) / self.s.warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - self.s.warmup) / (self.s.steps - self.s.warmup)))

    def batch(self, data):
        at = torch.randint(len(data) - self.s.block - 1, (self.s.micro, 1), generator=self.g)
        rows = data[at + torch.arange(self.s.block + 1)]
        return rows[:, :-1], rows[:, 1:]

    def step(self):
        total = torch.zeros(())
        for micro in range(self.s.accumulate):
            last = micro == self.s.accumulate - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.model(*self.batch(self.train)) / self.s.accumulate
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return total

    @torch.no_grad()
    def held_out(self):
        self.model.eval()
        loss = torch.stack([self.model.module(*self.batch(self.held)) for _ in range(6)]).mean()
        self.model.train()
        dist.all_reduce(loss)
        return loss.item() / self.world

    def run(self):
        for step in range(self.s.steps):
            loss = self.step()
            if step % 45 == 44:
                held = self.held_out()
                if self.rank == 0:
                    print(f"step {step + 1} loss {loss.item():.4f} held out {held:.4f}", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    Trainer(Settings()).run()
