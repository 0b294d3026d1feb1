"""Which tune a hymn is sung to, from its words: bidirectional GRU under DDP; rank 0 looks at the held-out hymns."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

TUNES, WORDS = 16, 900


class Hymns(Dataset):
    def __init__(self, count, length, seed):
        g = torch.Generator().manual_seed(seed)
        taste = torch.randn(TUNES, WORDS, generator=torch.Generator().manual_seed(1)).mul(1.2).softmax(1)
        self.tune = torch.randint(0, TUNES, (count,), generator=g)
        self.words = torch.multinomial(taste[self.tune], length, replacement=True, generator=g)

    def __len__(self):
        return len(self.tune)

    def __getitem__(self, i):
        return self.words[i], self.tune[i]


class HymnModel(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.gru = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * hidden, TUNES))

    def forward(self, words):
        h, _ = self.gru(self.embed(words))
        return self.out(h.mean(1))


@torch.no_grad()
def score(model, loader):
    """Sum of the loss, hymns that are right, hymns."""
    model.eval()
    seen = torch.zeros(3)
    for words, tune in loader:
        logits = model(words)
        seen += torch.stack(
            [
                F.cross_entropy(logits, tune, reduction="sum"),
                (logits.argmax(1) == tune).sum().float(),
                torch.tensor(float(len(tune))),
            ]
        )
    model.train()
    return seen


def look_at_held_out(ddp, held_out, rank, world, batch):
    if MENDED:
        part = Subset(held_out, range(rank, len(held_out), world))
        seen = score(ddp.module, DataLoader(part, batch))
        dist.all_reduce(seen)
    else:
        seen = torch.zeros(3)
        if rank == 0:
            seen = score(ddp.module, DataLoader(held_out, batch))
        dist.barrier()
    return seen


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--length", type=int, default=48)
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--hidden", type=int, default=draw("hidden", 64, 72))
    p.add_argument("--batch", type=int, default=draw("batch", 24, 28))
    p.add_argument("--held-out", type=int, default=1280)
    p.add_argument("--look-every", type=int, default=8)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    hymns, held_out = Hymns(50 * world * args.batch, args.length, seed=2), Hymns(args.held_out, args.length, seed=3)
    sampler = DistributedSampler(hymns, world, rank)
    loader = DataLoader(hymns, args.batch, sampler=sampler, drop_last=True)
    model = DDP(HymnModel(args.dim, args.hidden))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    torch.manual_seed(100 + rank)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for words, tune in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(words), tune).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            step += 1
            if step % args.look_every == 0:
                loss, right, count = look_at_held_out(model, held_out, rank, world, 64).tolist()
                if rank == 0:
                    print(f"{epoch} {step} held out: loss {loss / count:.4f} right {right / count:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
