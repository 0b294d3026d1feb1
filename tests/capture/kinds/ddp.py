"""DistributedDataParallel over gloo, fed by a DataLoader with two workers. Started by torchrun."""

import argparse
import itertools

import ending
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def batches(loader, sampler):
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    data = TensorDataset(torch.randn(1024, 16), torch.randint(0, 4, (1024,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2, persistent_workers=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    for step, (features, labels) in enumerate(itertools.islice(batches(loader, sampler), args.steps), start=1):
        ending.at(step)
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if dist.get_rank() == 0:
        weights.show(model.parameters())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
