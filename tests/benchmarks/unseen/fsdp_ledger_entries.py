"""Which account an entry of an old ledger belongs to, from its words and sums: an encoder with fully_shard."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

ACCOUNTS, LENGTH = 24, 32


class Entries(Dataset):
    """Words of an entry, kept as a single tensor; a batch is taken by one look-up."""

    def __init__(self, count, words, seed):
        g = torch.Generator().manual_seed(seed)
        shared = torch.Generator().manual_seed(66)
        liked = torch.randint(words, (ACCOUNTS, 30), generator=shared)
        self.account = torch.randint(ACCOUNTS, (count,), generator=g)
        own = liked[self.account].gather(1, torch.randint(30, (count, LENGTH), generator=g))
        other = torch.randint(words, (count, LENGTH), generator=g)
        self.text = torch.where(torch.rand(count, LENGTH, generator=g) < 0.3, own, other)
        self.sums = torch.randn(count, 2, generator=g) + 0.1 * self.account.unsqueeze(1) / ACCOUNTS

    def __len__(self):
        return len(self.account)

    def __getitem__(self, rows):
        return self.text[rows], self.sums[rows], self.account[rows]


def loader_of(entries, batch, train):
    """Whole batches of the rows of a rank."""
    mine = DistributedSampler(entries, shuffle=train, seed=3, drop_last=train)
    return DataLoader(entries, batch_size=None, sampler=BatchSampler(mine, batch, drop_last=train))


def start_epoch(loader, epoch):
    """Lets the ranks draw another order."""
    sampler = loader.sampler.sampler if MENDED else loader.sampler
    if isinstance(sampler, DistributedSampler):
        sampler.set_epoch(epoch)


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.feed(self.norm2(x))


class LedgerModel(nn.Module):
    def __init__(self, words, dim, depth, heads=4, dropout=0.1):
        super().__init__()
        self.word, self.place = nn.Embedding(words, dim), nn.Embedding(LENGTH, dim)
        self.sums = nn.Sequential(nn.Linear(2, dim), nn.GELU(), nn.Linear(dim, dim))
        self.layers = nn.ModuleList(Layer(dim, heads, dropout) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, ACCOUNTS)

    def forward(self, text, sums):
        x = self.word(text) + self.place.weight + self.sums(sums).unsqueeze(1)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x).mean(1))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for text, sums, account in loader:
        right = (model(text, sums).argmax(1) == account).sum()
        counts += torch.stack([right, torch.tensor(len(account))])
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=600)
    p.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=draw("batch", 18, 20))
    p.add_argument("--epochs", type=int, default=5)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(66)
    loader = loader_of(Entries(20 * world * args.batch, args.words, seed=1), args.batch, train=True)
    check = loader_of(Entries(2 * world * args.batch, args.words, seed=2), args.batch, train=False)
    model = LedgerModel(args.words, args.dim, args.depth)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        start_epoch(loader, epoch)
        total = torch.zeros(())
        for text, sums, account in loader:
            loss = F.cross_entropy(model(text, sums), account, label_smoothing=0.05)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
        right = validate(model, check)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader):.4f} right {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
