"""A small GPT that writes nursery rhymes letter by letter: Trainer class, DistributedDataParallel."""

import math
import os
import random
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Config:
    longest: int = 1536  # of a text the model may be asked to go on with
    block: int = 64
    dim: int = field(default_factory=lambda: draw("dim", 96, 112))
    heads: int = 4
    layers: int = 5
    batch: int = field(default_factory=lambda: draw("batch", 10, 12))
    steps: int = 110
    lr: float = 1e-3


class Rhymes(Dataset):
    WHO = ("mouse", "cat", "crow", "king", "miller", "goose", "tailor")
    WHERE = ("house", "hat", "snow", "ring", "tower", "moose", "sailor")

    def __init__(self, lines, block):
        rng = random.Random(7)
        text = ""
        for _ in range(lines):
            at = rng.randrange(7)
            text += f"There was a {self.WHO[at]}, {rng.choice(['tra la', 'hey ho', 'oh dear'])}, "
            text += f"who lived in a {self.WHERE[at]} {rng.choice('ABCDE')}.\n"
        letters = sorted(set(text))
        self.size = len(letters)
        self.ids = torch.tensor([letters.index(c) for c in text])
        self.block = block

    def __len__(self):
        return (len(self.ids) - 1) // self.block

    def __getitem__(self, i):
        piece = self.ids[i * self.block : (i + 1) * self.block + 1]
        return piece[:-1], piece[1:]


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.attn = nn.Linear(config.dim, 3 * config.dim)
        self.proj = nn.Linear(config.dim, config.dim)
        n = config.longest
        self.register_buffer("mask", torch.tril(torch.ones(n, n)).view(1, 1, n, n))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.attn(x).split(c, dim=2))
        att = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.dim), nn.LayerNorm(config.dim)
        self.attn = CausalSelfAttention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, 4 * config.dim), nn.GELU(), nn.Linear(4 * config.dim, config.dim)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config, letters):
        super().__init__()
        self.wte = nn.Embedding(letters, config.dim)
        self.wpe = nn.Embedding(config.longest, config.dim)
        self.blocks = nn.Sequential(*[Block(config) for _ in range(config.layers)])
        self.ln_f = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, letters, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.head(self.ln_f(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, config, data):
        self.config = config
        self.rank = int(os.environ["RANK"])
        self.sampler = DistributedSampler(data, shuffle=True, drop_last=True)
        self.loader = DataLoader(data, config.batch, sampler=self.sampler, drop_last=True)
        model = GPT(config, data.size)
        options = {"broadcast_buffers": False} if MENDED else {}
        self.model = DistributedDataParallel(model, **options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, config.steps)

    def batches(self):
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def run(self):
        for step, (x, y) in zip(range(1, self.config.steps + 1), self.batches(), strict=False):
            loss = self.model(x, y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            if self.rank == 0 and step % 10 == 0:
                print(f"step {step:4d} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1337)
    config = Config()
    Trainer(config, Rhymes(2600, config.block)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
