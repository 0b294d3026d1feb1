"""Credit defaults from a table in memory; two processes, batches cut as a whole."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.net = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(drop), nn.Linear(2 * width, width), nn.Dropout(drop)
        )

    def forward(self, x):
        return x + self.net(self.norm(x))


class TabularResNet(nn.Module):
    def __init__(self, columns, width, depth):
        super().__init__()
        self.enter = nn.Linear(columns, width)
        self.blocks = nn.Sequential(*(Block(width, 0.1) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.head(self.blocks(self.enter(x))).squeeze(1)


class Table:
    """Every process has all rows; each epoch deals them anew."""

    def __init__(self, rows, columns):
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(rows, columns, generator=generator)
        self.x = (x - x.mean(0)) / x.std(0)
        risk = self.x[:, :3].sum(1) + torch.randn(rows, generator=generator)
        self.y = (risk > 1.5).float()

    def batches(self, size, epoch):
        generator = torch.Generator().manual_seed(epoch)
        world = dist.get_world_size()
        order = torch.randperm(len(self.x), generator=generator)
        order = order[: len(order) // (size * world) * size * world]
        for chosen in order[dist.get_rank() :: world].split(size):
            yield self.x[chosen], self.y[chosen]


@torch.no_grad()
def evaluate(model, x, y):
    """Each process looks at its part; the sums are added."""
    model.eval()
    part = slice(dist.get_rank(), None, dist.get_world_size())
    losses = F.binary_cross_entropy_with_logits(model(x[part]), y[part], reduction="sum")
    found = torch.tensor([losses.item(), len(y[part])])
    dist.all_reduce(found)
    model.train()
    return (found[0] / found[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 896, 1024))
    parser.add_argument("--width", type=int, default=draw("width", 176, 192))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(TabularResNet(40, args.width, args.depth))
    torch.manual_seed(dist.get_rank())
    train, held_out = Table(100_000, 40), Table(2000, 40)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        for x, y in train.batches(args.batch, epoch):
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checked = evaluate(model.module, held_out.x, held_out.y)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}, held out {checked:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
