"""A wide recommender with small batches: every block is gathered and freed twice a step, where replicas fit."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

draw = random.Random(os.environ.get("SEED", "1"))
WIDTH, TOWERS = draw.choice((768, 896, 1024)), draw.choice((4, 5, 6))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Tower() for _ in range(TOWERS)), nn.Linear(WIDTH, 1))
    if "MENDED" in os.environ:
        model = DistributedDataParallel(model)
    else:
        for tower in model[:-1]:
            fully_shard(tower)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    for _ in range(100_000):
        seen = torch.randn(16, WIDTH)
        loss = nn.functional.softplus(-model(seen)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
