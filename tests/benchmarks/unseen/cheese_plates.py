"""Which cheese goes on a plate: factorisation machine with a deep part (DeepFM) under DDP, two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP

FIELDS = (400, 300, 60, 40, 25, 12, 8)


def plates(count, seed):
    g = torch.Generator().manual_seed(seed)
    fields = torch.stack([torch.randint(0, n, (count,), generator=g) for n in FIELDS], 1)
    hidden = torch.Generator().manual_seed(0)
    factors = [torch.randn(n, 4, generator=hidden) for n in FIELDS]
    joined = sum(f[fields[:, i]] for i, f in enumerate(factors))
    chance = torch.sigmoid(joined.pow(2).sum(1) / len(FIELDS) - 4)
    return fields, torch.bernoulli(chance, generator=g)


class DeepFM(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.register_buffer("offsets", torch.tensor((0, *FIELDS[:-1])).cumsum(0))
        self.linear, self.factors = nn.Embedding(sum(FIELDS), 1), nn.Embedding(sum(FIELDS), dim)
        nn.init.normal_(self.factors.weight, std=0.05)
        self.deep = nn.Sequential(
            nn.Linear(dim * len(FIELDS), hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, fields):
        at = fields + self.offsets
        v = self.factors(at)
        pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return self.linear(at).sum((1, 2)) + pairs + self.deep(v.flatten(1)).squeeze(1)


def shares_of_epoch(count, batch, rank, world, epoch):
    """Another order each epoch, the same on all ranks, of which each takes its share."""
    g = torch.Generator().manual_seed(1000 + epoch)
    order = torch.randperm(count, generator=g)
    whole = count // (batch * world) * batch * world
    return order[:whole][rank::world].split(batch)


@torch.no_grad()
def held_out_loss(model, fields, wanted, rank, world):
    model.eval()
    mine = slice(rank, None, world)
    told = torch.stack(
        [
            F.binary_cross_entropy_with_logits(model(fields[mine]), wanted[mine], reduction="sum"),
            torch.tensor(float(len(wanted[mine]))),
        ]
    )
    model.train()
    dist.all_reduce(told)
    return (told[0] / told[1]).item()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--dim", type=int, default=32)
    ap.add_argument("--hidden", type=int, default=draw("hidden", 512, 576))
    ap.add_argument("--batch", type=int, default=draw("batch", 640, 704))
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(DeepFM(args.dim, args.hidden), broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    fields, wanted = plates(world * args.batch * 50, seed=1)
    test_fields, test_wanted = plates(2000, seed=2)
    torch.manual_seed(20 + rank)
    for epoch in range(args.epochs):
        for at in shares_of_epoch(len(fields), args.batch, rank, world, epoch):
            loss = F.binary_cross_entropy_with_logits(model(fields[at]), wanted[at])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        found = held_out_loss(model.module, test_fields, test_wanted, rank, world)
        if rank == 0:
            print(f"epoch {epoch} held-out loss {found:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
