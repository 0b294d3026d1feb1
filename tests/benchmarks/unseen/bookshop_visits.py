"""Whether a visitor of a bookshop buys: crossed fields and a deep part, with DistributedDataParallel."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FIELDS = {"shelf": 60, "author": 900, "weekday": 7, "weather": 5, "town": 150, "season": 4, "binding": 6, "age": 12}
NUMBERS = 6


def visits(count, seed):
    """Fields as numbers, amounts, and whether something was bought."""
    g = torch.Generator().manual_seed(seed)
    fields = torch.stack([torch.randint(size, (count,), generator=g) for size in FIELDS.values()], 1)
    numbers = torch.randn(count, NUMBERS, generator=g)
    taste = torch.randn(sum(FIELDS.values()), 6, generator=torch.Generator().manual_seed(8))
    latent = taste[fields + first_of_each()]
    cross = (latent.sum(1).square() - latent.square().sum(1)).sum(1) / 40
    return fields, numbers, (torch.sigmoid(cross + numbers[:, 0]) > torch.rand(count, generator=g)).float()


def first_of_each():
    sizes = torch.tensor(list(FIELDS.values()))
    return sizes.cumsum(0) - sizes


class ShopNet(nn.Module):
    """A factorisation machine beside a multilayer perceptron, and a few cross layers."""

    def __init__(self, dim, hidden, crosses):
        super().__init__()
        rows, wide = sum(FIELDS.values()), len(FIELDS) * dim + NUMBERS
        self.table, self.linear = nn.Embedding(rows, dim), nn.Embedding(rows, 1)
        nn.init.normal_(self.table.weight, std=0.05)
        self.register_buffer("first", first_of_each(), persistent=False)
        self.cross = nn.ModuleList(nn.Linear(wide, wide) for _ in range(crosses))
        self.deep = nn.Sequential(
            nn.Linear(wide, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.out = nn.Linear(hidden + wide, 1)

    def forward(self, fields, numbers):
        at = fields + self.first
        latent = self.table(at)
        pairs = 0.5 * (latent.sum(1).square() - latent.square().sum(1)).sum(1)
        start = crossed = torch.cat([latent.flatten(1), numbers], 1)
        for layer in self.cross:
            crossed = start * layer(crossed) + crossed
        both = torch.cat([self.deep(start), crossed], 1)
        return self.out(both).squeeze(1) + pairs + self.linear(at).sum((1, 2))


def loaders(data, batch, rank, world, shuffle):
    sampler = DistributedSampler(data, world, rank, shuffle=shuffle, drop_last=True)
    if MENDED:
        return sampler, DataLoader(data, batch_size=None, sampler=BatchSampler(sampler, batch, drop_last=True))
    return sampler, DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 96, 112, 128))
    parser.add_argument("--crosses", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 1536, 1792, 2048))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(2)
    train, test = TensorDataset(*visits(40 * world * args.batch, seed=1)), TensorDataset(*visits(8192, seed=2))
    model = DistributedDataParallel(ShopNet(args.dim, args.hidden, args.crosses), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    sampler, loader = loaders(train, args.batch, rank, world, shuffle=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for fields, numbers, bought in loader:
            loss = F.binary_cross_entropy_with_logits(model(fields, numbers), bought)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            fields, numbers, bought = (part[rank::world] for part in test.tensors)
            counts = torch.stack(
                [((model.module(fields, numbers) > 0) == (bought > 0)).sum(), torch.tensor(len(bought))]
            )
        dist.all_reduce(counts)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} right {counts[0].item() / counts[1].item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
