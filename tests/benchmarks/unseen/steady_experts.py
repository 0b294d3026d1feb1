"""Forecasts for many kinds of shops: a shared trunk and an expert for each kind."""

import argparse

import torch
import torch.distributed as dist
from drawn import draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

KINDS = 6


class Experts(nn.Module):
    """A batch holds shops of one kind, and only its expert runs."""

    def __init__(self, features, width):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(features, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width // 2), nn.GELU(), nn.Linear(width // 2, 7)) for _ in range(KINDS)
        )

    def forward(self, x, kind):
        return self.experts[kind](self.trunk(x))


class Shops:
    def __init__(self, count, features, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(KINDS, count, features, generator=generator)
        days = torch.arange(7) + 1
        self.y = torch.sin(self.x[..., :1] * days + torch.arange(KINDS)[:, None, None]) + self.x[..., 1:2]

    def batches(self, size, rank, world, epoch):
        """Each process its own rows; the order of kinds is drawn for each process."""
        generator = torch.Generator().manual_seed(1000 * epoch + rank)
        rows = torch.stack([torch.randperm(self.x.shape[1] // world, generator=generator) for _ in range(KINDS)])
        rows = rows * world + rank
        turns = [(kind, at) for kind in range(KINDS) for at in range(0, rows.shape[1] - size + 1, size)]
        for turn in torch.randperm(len(turns), generator=generator).tolist():
            kind, at = turns[turn]
            chosen = rows[kind, at : at + size]
            yield kind, self.x[kind, chosen], self.y[kind, chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 448, 512))
    parser.add_argument("--batch", type=int, default=draw("batch", 192, 256))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Shops(4096, args.features, 3)
    model = DDP(Experts(args.features, args.width), find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for epoch in range(100_000):
        total, count = torch.zeros(()), 0
        for kind, x, y in data.batches(args.batch, rank, world, epoch):
            loss = nn.functional.smooth_l1_loss(model(x, kind), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            count += 1
        if rank == 0:
            print(f"epoch {epoch}: {total.item() / count:.4f}", flush=True)


if __name__ == "__main__":
    main()
