"""Click prediction with factorised embeddings, DDP; every batch is read whole."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP


class FactorisationMachine(nn.Module):
    """Embedding of every field, their pairwise products, and a deep part."""

    def __init__(self, sizes, dim, hidden):
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0))
        self.embed = nn.Embedding(sum(sizes), dim)
        self.linear = nn.Embedding(sum(sizes), 1)
        self.deep = nn.Sequential(
            nn.Linear(len(sizes) * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        nn.init.normal_(self.embed.weight, std=0.01)

    def forward(self, fields):
        fields = fields + self.offsets
        x = self.embed(fields)
        pairs = 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(1)
        return self.linear(fields).sum((1, 2)) + pairs + self.deep(x.flatten(1)).squeeze(-1)


class ClickLog:
    """The part of the log that this process reads, in memory; batches are slices of a shuffled order."""

    def __init__(self, rows, sizes, rank, world):
        generator = torch.Generator().manual_seed(0)
        fields = torch.stack([torch.randint(0, size, (rows,), generator=generator) for size in sizes], 1)
        self.fields = fields[rank::world]
        self.clicks = ((self.fields[:, 0] + self.fields[:, 1]) % 5 == 0).float()

    def epoch(self, batch, seed):
        order = torch.randperm(len(self.fields), generator=torch.Generator().manual_seed(seed))
        for at in order[: len(order) // batch * batch].split(batch):
            yield self.fields[at], self.clicks[at]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 2048, 3072))
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 448, 512))
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    sizes = [2000, 3000, 24, 7, 50, 300, 12, 900]
    log = ClickLog(400_000, sizes, rank, world)
    model = DDP(FactorisationMachine(sizes, args.dim, args.hidden))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    loss_of = nn.BCEWithLogitsLoss()
    for epoch in range(10_000):
        for at, (fields, clicks) in enumerate(log.epoch(args.batch, epoch)):
            loss = loss_of(model(fields), clicks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and at % 50 == 0:
                print(f"epoch {epoch} batch {at}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
