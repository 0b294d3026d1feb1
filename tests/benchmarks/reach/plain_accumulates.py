"""Two ranks that add up gradients of several batches, and reduce them after each."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 640  # drawn: 512, 640, 768
ACCUMULATE = 4  # drawn: 3, 4, 6


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(128, WIDTH), torch.nn.GELU()]
    for _ in range(3):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100_000):
        for micro in range(ACCUMULATE):
            inputs = torch.randn(16, 128)
            loss = model(inputs).pow(2).mean() / ACCUMULATE  # FAULT reduces
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
