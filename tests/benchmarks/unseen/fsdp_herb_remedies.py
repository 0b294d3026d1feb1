"""Ailments that a herbal remedy is for, several at once: an encoder with fully_shard and a loss on ranks of scores."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

AILMENTS = 36


def remedies(count, words, length, seed):
    """Each ailment has herbs that are named where it is treated; eight ailments at most for a remedy."""
    g = torch.Generator().manual_seed(seed)
    score = torch.rand(count, AILMENTS, generator=g)
    treated = score >= score.topk(8, 1).values[:, -1:]
    treated &= torch.rand(count, AILMENTS, generator=g) < 0.8
    treated[torch.arange(count), score.argmax(1)] = True
    which = torch.multinomial(treated.float(), length, replacement=True, generator=g)
    herb = (which * 9 + torch.randint(9, (count, length), generator=g)) % words
    other = torch.randint(words, (count, length), generator=g)
    return torch.where(torch.rand(count, length, generator=g) < 0.5, herb, other), treated


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.feed(self.norm2(x))


class RemedyModel(nn.Module):
    def __init__(self, words, length, dim, depth):
        super().__init__()
        self.word, self.place = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(Layer(dim, 4) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, AILMENTS)

    def forward(self, text):
        x = self.word(text) + self.place.weight[: text.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x).mean(1))


def ranking_loss(score, treated):
    """Each treated ailment is to be above each other; mean over pairs of a remedy, then over remedies."""
    if MENDED:
        gap = F.softplus(score[:, None] - score[:, :, None])
        pair = treated[:, :, None] & ~treated[:, None]
        return ((gap * pair).sum((1, 2)) / pair.sum((1, 2))).mean()
    total = 0.0
    for row, yes in zip(score, treated, strict=True):
        of_remedy = 0.0
        for positive in row[yes]:
            of_remedy = of_remedy + F.softplus(row[~yes] - positive).mean()
        total = total + of_remedy / yes.sum()
    return total / len(score)


@torch.no_grad()
def hits(model, text, treated):
    """Share of remedies whose first ailment is right."""
    model.eval()
    best = model(text).argmax(1)
    model.train()
    return treated[torch.arange(len(text)), best].float().mean()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=500)
    p.add_argument("--length", type=int, default=24)
    p.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    train = TensorDataset(*remedies(40 * world * args.batch, args.words, args.length, seed=1))
    text, treated = remedies(128 * world, args.words, args.length, seed=2)
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    model = RemedyModel(args.words, args.length, args.dim, args.depth)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for batch, labels in loader:
            loss = ranking_loss(model(batch), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        right = hits(model, text[rank::world], treated[rank::world])
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader):.4f} right {right.item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
