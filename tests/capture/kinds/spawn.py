"""Starts its own ranks with torch.multiprocessing.spawn."""

import argparse
import os
import socket

import ending
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 10_000 + os.getpid() % 20_000))  # outside of what the system gives to others
        return listener.getsockname()[1]


def train(rank, args, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, args.steps + 1):
        ending.at(step)
        loss = nn.functional.cross_entropy(model(torch.randn(16, 16)), torch.randint(0, 4, (16,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        weights.show(model.parameters())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(train, args=(args, free_port()), nprocs=args.ranks)
