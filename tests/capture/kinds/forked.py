"""Starts its own ranks by fork: through multiprocessing, or with --os-fork by os.fork itself."""

import argparse
import multiprocessing
import os
import socket
import sys

import ending
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 10_000 + os.getpid() % 20_000))  # outside of what the system gives to others
        return listener.getsockname()[1]


def train(rank, ranks, steps, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        ending.at(step)
        loss = nn.functional.cross_entropy(model(torch.randn(16, 16)), torch.randint(0, 4, (16,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        weights.show(model.parameters())
    dist.barrier()
    dist.destroy_process_group()


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--os-fork", action="store_true")
args = parser.parse_args()
port = free_port()

if args.os_fork:
    children = []
    for rank in range(args.ranks):
        children.append(os.fork())
        if children[-1] == 0:
            train(rank, args.ranks, args.steps, port)
            sys.exit(0)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
else:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=train, args=(rank, args.ranks, args.steps, port)) for rank in range(args.ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
sys.exit(next((abs(code) for code in codes if code), 0))
