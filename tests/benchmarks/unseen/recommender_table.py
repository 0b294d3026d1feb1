"""A two-tower recommender with large embedding tables on two processes."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tower(nn.Module):
    def __init__(self, rows, dim, features):
        super().__init__()
        self.table = nn.Embedding(rows, dim, sparse=MENDED)
        self.net = nn.Sequential(
            nn.Linear(dim + features, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)
        )

    def forward(self, ids, features):
        return self.net(torch.cat([self.table(ids), features], 1))


class TwoTower(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = Tower(users, dim, 24)
        self.item = Tower(items, dim, 40)

    def forward(self, batch):
        user = F.normalize(self.user(batch["user"], batch["user_features"]))
        item = F.normalize(self.item(batch["item"], batch["item_features"]))
        return user @ item.T / 0.07


class Clicks:
    """Clicks, as they would be read from a log."""

    def __init__(self, users, items, batch, seed):
        self.users, self.items, self.batch = users, items, batch
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        return self

    def __next__(self):
        g, n = self.generator, self.batch
        return {
            "user": torch.randint(0, self.users, (n,), generator=g),
            "item": torch.randint(0, self.items, (n,), generator=g),
            "user_features": torch.randn(n, 24, generator=g),
            "item_features": torch.randn(n, 40, generator=g),
        }


def optimizers(model, lr):
    tables = [p for name, p in model.named_parameters() if "table" in name]
    dense = [p for name, p in model.named_parameters() if "table" not in name]
    of_tables = torch.optim.SparseAdam(tables, lr=lr) if MENDED else torch.optim.Adam(tables, lr=lr)
    return torch.optim.Adam(dense, lr=lr), of_tables


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=draw("users", 60_000, 80_000))
    parser.add_argument("--items", type=int, default=draw("items", 30_000, 40_000))
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batch", type=int, default=draw("batch", 768, 1024))
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(TwoTower(args.users, args.items, args.dim))
    steps = optimizers(model, args.lr)
    for step, batch in enumerate(Clicks(args.users, args.items, args.batch, rank)):
        logits = model(batch)
        target = torch.arange(len(logits))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        for optimizer in steps:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in steps:
            optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
