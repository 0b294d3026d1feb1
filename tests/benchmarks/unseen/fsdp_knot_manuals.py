"""Steps of tying a knot, translated into signs: an encoder and a decoder with fully_shard, texts of any length."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD, START, STOP, FIRST = 0, 1, 2, 3


class Manuals(Dataset):
    """A sign for each pair of words, in the reverse order."""

    def __init__(self, count, words, longest, seed):
        rng = random.Random(seed)
        self.pairs = []
        for _ in range(count):
            text = [rng.randrange(words) for _ in range(2 * rng.randint(longest // 4, longest // 2))]
            signs = [(a * 3 + b) % words for a, b in zip(text[::2], text[1::2], strict=True)][::-1]
            text = torch.tensor(text) + FIRST
            self.pairs.append((text, torch.tensor([START - FIRST, *signs, STOP - FIRST]) + FIRST))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def collate(rows):
    text, signs = zip(*rows, strict=True)
    return pad_sequence(text, batch_first=True), pad_sequence(signs, batch_first=True)


class Translator(nn.Module):
    def __init__(self, words, longest, dim, depth):
        super().__init__()
        self.word, self.sign = nn.Embedding(words + FIRST, dim), nn.Embedding(words + FIRST, dim)
        self.place = nn.Embedding(longest + 2, dim)
        make = {"dim_feedforward": 3 * dim, "dropout": 0.1, "batch_first": True, "norm_first": True}
        self.readers = nn.ModuleList(nn.TransformerEncoderLayer(dim, 4, **make) for _ in range(depth))
        self.writers = nn.ModuleList(nn.TransformerDecoderLayer(dim, 4, **make) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, words + FIRST)
        later = torch.ones(longest + 2, longest + 2, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, text, signs):
        ends, n = text == PAD, signs.shape[1]
        x = self.word(text) + self.place.weight[: text.shape[1]]
        for layer in self.readers:
            x = layer(x, src_key_padding_mask=ends)
        y = self.sign(signs) + self.place.weight[:n]
        for layer in self.writers:
            y = layer(y, x, tgt_mask=self.later[:n, :n], memory_key_padding_mask=ends)
        return self.out(self.norm(y))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=120)
    p.add_argument("--longest", type=int, default=28)
    p.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    data = Manuals(30 * world * args.batch, args.words, args.longest, seed=1)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, collate_fn=collate, drop_last=True)
    model = Translator(args.words, args.longest, args.dim, args.depth)
    for layer in (*model.readers, *model.writers):
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: min(1.0, (at + 1) / 15))
    torch.manual_seed(70 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for text, signs in loader:
            scores = model(text, signs[:, :-1])
            target = signs[:, 1:]
            count = (target != PAD).sum().float()
            added = F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
            everywhere = count.clone()
            dist.all_reduce(everywhere)
            (added * world / everywhere).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += torch.stack([added.detach(), count])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss a sign {(total[0] / total[1]).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
