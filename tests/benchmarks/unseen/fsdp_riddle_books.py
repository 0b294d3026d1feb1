"""Words hidden in riddles: a bidirectional encoder with masked words, with fully_shard, riddles of any length."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD, MASK, FIRST = 0, 1, 2


class Riddles(Dataset):
    """Chains of words in which each word has a favourite follower."""

    def __init__(self, count, words, longest, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            length = int(6 + (longest - 6) * rng.random() ** 3)
            row = [rng.randrange(words)]
            while len(row) < length:
                row.append((row[-1] * 5 + 7) % words if rng.random() < 0.8 else rng.randrange(words))
            self.rows.append(torch.tensor(row) + FIRST)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def hide(rows, share=0.15):
    """Inputs with some words hidden, and targets that are -100 elsewhere."""
    ids = pad_sequence(rows, batch_first=True, padding_value=PAD)
    chosen = (torch.rand(ids.shape) < share) & (ids != PAD)
    chosen[:, 0] = True
    return ids.masked_fill(chosen, MASK), ids.masked_fill(~chosen, -100)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, seen):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None])
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.feed(self.norm2(x))


class RiddleModel(nn.Module):
    def __init__(self, words, longest, dim, depth):
        super().__init__()
        self.word, self.place = nn.Embedding(words + FIRST, dim), nn.Embedding(longest, dim)
        self.layers = nn.ModuleList(Layer(dim, 4) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, words + FIRST)

    def forward(self, ids):
        x = self.word(ids) + self.place.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, ids != PAD)
        return self.out(self.norm(x))


def hidden_word_loss(scores, target, world):
    loss = F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
    count = (target != -100).sum().float()
    if MENDED:
        dist.all_reduce(count)
        return loss * world / count
    return loss / count


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=400)
    p.add_argument("--longest", type=int, default=96)
    p.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=draw("batch", 8, 10))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    data = Riddles(32 * world * args.batch, args.words, args.longest, seed=1)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, collate_fn=hide, drop_last=True)
    model = RiddleModel(args.words, args.longest, args.dim, args.depth)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    torch.manual_seed(50 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for ids, target in loader:
            loss = hidden_word_loss(model(ids), target, world)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
