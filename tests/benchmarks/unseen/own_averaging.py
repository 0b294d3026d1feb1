"""Data-parallel training with gradients averaged by hand, as in the tutorial on collectives."""

import argparse

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Partition:
    def __init__(self, rows, rank, world, seed=1234):
        order = torch.randperm(len(rows[0]), generator=torch.Generator().manual_seed(seed))
        mine = order[rank::world]
        self.rows = [column[mine] for column in rows]

    def batches(self, size):
        order = torch.randperm(len(self.rows[0]))
        for at in range(0, len(order) - size + 1, size):
            yield [column[order[at : at + size]] for column in self.rows]


class Cell(nn.Module):
    """A narrow residual cell of many small layers."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        y = self.norm(x)
        return x + self.out(torch.sigmoid(self.gate(y)) * self.value(y))


def network(features, dim, depth, classes):
    return nn.Sequential(nn.Linear(features, dim), *(Cell(dim) for _ in range(depth)), nn.Linear(dim, classes))


def average_gradients(model):
    world = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= world


def broadcast_parameters(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    parser.add_argument("--depth", type=int, default=draw("depth", 14, 16))
    parser.add_argument("--batch", type=int, default=draw("batch", 192, 224))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1234)
    x = torch.randn(16_384, 64)
    y = torch.randint(0, 12, (16_384,))
    data = Partition((x, y), rank, world)
    model = network(64, args.dim, args.depth, 12)
    if MENDED:
        model = DistributedDataParallel(model)
    else:
        broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(100_000):
        total, seen = 0.0, 0
        for rows, labels in data.batches(args.batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            if not MENDED:
                average_gradients(model)
            optimizer.step()
            total += loss.item()
            seen += 1
        if rank == 0:
            print(f"epoch {epoch}: {total / seen:.4f}", flush=True)


if __name__ == "__main__":
    main()
