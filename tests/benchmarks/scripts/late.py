"""A DDP training in which one rank stalls in every step: STALL names where, LATE_RANK which rank, STALL_MS how long.

The place of each stall is a function of its own; without STALL the run is healthy.
"""

import gc
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STALL, LATE_RANK = os.environ.get("STALL", ""), int(os.environ.get("LATE_RANK", "-1"))
SECONDS = float(os.environ.get("STALL_MS", "40")) / 1e3
BATCH, WIDTH, STEPS = 32, 128, 400


def stalls(where: str) -> bool:
    return where == STALL and dist.get_rank() == LATE_RANK


def on_gradient(module, gradients_in, gradients_out):
    time.sleep(SECONDS)


def collated(samples):
    if stalls("collate"):
        time.sleep(SECONDS)
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs), torch.stack(targets)


def mean_over_ranks(value):
    if stalls("collective"):
        time.sleep(SECONDS)
    dist.all_reduce(value)
    return value / dist.get_world_size()


def collect_garbage(objects):
    gc.collect()
    return len(objects)


def read_back(values):
    began, total = time.perf_counter(), 0.0
    while time.perf_counter() < began + SECONDS:
        total += values[random.randrange(len(values))].item()
    return total


def augmented(sample):
    if stalls("transform"):
        time.sleep(SECONDS / BATCH)
    return sample * 1.01


class Samples(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(BATCH * STEPS, WIDTH, generator=generator)
        self.targets = torch.randint(0, 10, (BATCH * STEPS,), generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return augmented(self.inputs[index]), self.targets[index]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    if stalls("hook"):
        net[3].register_full_backward_hook(on_gradient)
    objects = [[number] for number in range(round(SECONDS * 8e6))] if stalls("gc") else []
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in DataLoader(Samples(), BATCH, collate_fn=collated):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean_over_ranks(loss.detach())
        if stalls("gc"):
            collect_garbage(objects)
        if stalls("item"):
            read_back(targets)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
