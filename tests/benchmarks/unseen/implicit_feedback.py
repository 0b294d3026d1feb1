"""Neural collaborative filtering on implicit feedback with sampled negatives."""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

USERS, ITEMS, NEGATIVES = 2000, 1500, 4


class Interactions(Dataset):
    """Pairs of a user and an item that the user has looked at, with items that were not."""

    def __init__(self, pairs):
        self.pairs = pairs
        self.seen = {(int(user), int(item)) for user, item in pairs}
        self.table = np.zeros((USERS, ITEMS), bool)
        self.table[pairs[:, 0], pairs[:, 1]] = True

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        user, item = self.pairs[index]
        if MENDED:
            return user, item
        items, labels = [item], [1.0]
        for _ in range(NEGATIVES):
            other = np.random.randint(ITEMS)
            while (user, other) in self.seen:
                other = np.random.randint(ITEMS)
            items.append(other)
            labels.append(0.0)
        return np.full(len(items), user), np.array(items), np.array(labels, np.float32)

    def __getitems__(self, indices):
        if not MENDED:
            return [self[index] for index in indices]
        users, items = self.pairs[indices].T
        return users, self.with_negatives(users, items)

    def with_negatives(self, users, items):
        others = np.random.randint(0, ITEMS, (len(users), NEGATIVES))
        while (wrong := self.table[users[:, None], others]).any():
            others[wrong] = np.random.randint(0, ITEMS, wrong.sum())
        return np.concatenate([items[:, None], others], 1)


def collate(rows):
    if MENDED:
        users, items = rows
        labels = np.zeros(items.shape, np.float32)
        labels[:, 0] = 1
        users = np.repeat(users[:, None], items.shape[1], 1)
    else:
        users, items, labels = (np.stack(column) for column in zip(*rows, strict=True))
    return [torch.from_numpy(column.reshape(-1)) for column in (users, items, labels)]


class NeuMF(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, dim), nn.Embedding(ITEMS, dim)
        self.user_mlp, self.item_mlp = nn.Embedding(USERS, dim), nn.Embedding(ITEMS, dim)
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Linear(hidden // 2, dim),
        )
        self.out = nn.Linear(2 * dim, 1)

    def forward(self, users, items):
        matched = self.user(users) * self.item(items)
        deep = self.mlp(torch.cat([self.user_mlp(users), self.item_mlp(items)], 1))
        return self.out(torch.cat([matched, deep], 1)).squeeze(1)


def looked_at(count):
    rng = np.random.default_rng(1)
    popular = rng.zipf(1.3, 3 * count) - 1
    items = popular[popular < ITEMS][:count]
    return np.unique(np.stack([rng.integers(0, USERS, len(items)), items], 1), axis=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 224, 256))
    parser.add_argument("--batch", type=int, default=draw("batch", 512, 640))
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Interactions(looked_at(120_000))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, collate_fn=collate, drop_last=True)
    torch.manual_seed(0)
    np.random.seed(rank)
    model = DDP(NeuMF(args.dim, args.hidden))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for users, items, labels in loader:
            loss = criterion(model(users, items), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if rank == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
