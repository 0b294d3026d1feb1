"""A Trainer class on two ranks, with all-reduces of single layers and a search for unused parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LAYERS = 40  # drawn: 32, 40, 56
WIDTH = 192  # drawn: 160, 192, 224


class Trainer:
    def __init__(self, model, bucket_mb):
        self.model = DDP(model, bucket_cap_mb=bucket_mb, find_unused_parameters=True)  # FAULT searches
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)

    def train(self, steps):
        for _ in range(steps):
            batch = torch.randn(24, WIDTH)
            self.optimizer.zero_grad()
            (self.model(batch) - batch).abs().mean().backward()
            self.optimizer.step()


def build():
    return nn.Sequential(*[part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.SiLU())])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    Trainer(build(), bucket_mb=0.05).train(100_000)  # FAULT small
