"""Steps of two ranks, each made in another way: whether the gradients of the ranks are equal, and what is recorded.

    torchrun --nproc-per-node 2 averaging.py [--compiled]

Prints `WAY equal=True recorded=False` for each way: rank 0 compares the gradients themselves.
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.observe.observers import observers


class Halves(nn.Module):
    """Two layers, of which a pass may use one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, rows, both=True):
        return self.second(self.first(rows)) if both else self.first(rows)


def build(**options):
    torch.manual_seed(7)
    return DistributedDataParallel(Halves(), **options)


def rows():
    return torch.randn(4, 8, generator=DATA)


def passes(model, *alone, apart=""):
    """A micro-batch for each: whether it runs under no_sync; `apart`: which half of it does."""
    for one in alone:
        with model.no_sync() if one and apart != "backward" else contextlib.nullcontext():
            loss = model(rows()).square().mean()
            if apart != "forward":
                with model.no_sync() if one and apart == "backward" else contextlib.nullcontext():
                    loss.backward()
        if apart == "forward":
            loss.backward()


def past_the_wrapper(model):
    model.module(rows()).square().mean().backward()


def looks_between(model):
    loss = model(rows()).square().mean()
    with torch.no_grad():
        model(rows())
    loss.backward()


def another_pass_after(model):
    passes(model, False)
    torch.ones(3, requires_grad=True).sum().backward()


def another_module_alone(model):
    other = build()
    passes(model, False)
    passes(other, True)


def half_of_it(model):
    model(rows(), both=False).square().mean().backward()


def kept_gradients(model):
    passes(model, False)
    model.zero_grad(set_to_none=False)
    passes(model, False, True)


WAYS = {
    "plain": (lambda model: passes(model, False), {}),
    "accumulated": (lambda model: passes(model, False, False), {}),
    "last-synced": (lambda model: passes(model, True, True, False), {}),
    "first-synced": (lambda model: passes(model, False, True, True), {}),
    "never-synced": (lambda model: passes(model, True), {}),
    "forward-alone": (lambda model: passes(model, True, apart="forward"), {}),
    "backward-alone": (lambda model: passes(model, True, apart="backward"), {}),
    "past-the-wrapper": (past_the_wrapper, {}),
    "looks-between": (looks_between, {}),
    "another-pass-after": (another_pass_after, {}),
    "another-module-alone": (another_module_alone, {}),
    "half-of-it": (half_of_it, {"find_unused_parameters": True}),
    "kept-gradients": (kept_gradients, {}),
    "bucket-views": (lambda model: passes(model, True, False), {"gradient_as_bucket_view": True}),
    "bucket-views-first": (lambda model: passes(model, False, True), {"gradient_as_bucket_view": True}),
    "static-graph": (lambda model: passes(model, False), {"static_graph": True}),
}


def main():
    seen = observers().averaging
    for way, (train, options) in WAYS.items():
        model = build(**options)
        if "--compiled" in sys.argv:
            model.compile(backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            train(model)
            equal = all(same(parameter.grad) for parameter in model.parameters() if parameter.grad is not None)
            seen.stepped(optimizer)
            recorded = seen.take()
            with torch.no_grad():
                for parameter in model.parameters():  # back to what all ranks have
                    parameter.fill_(0.1)
        if dist.get_rank() == 0:
            print(f"{way} equal={equal} recorded={recorded}", flush=True)


def same(gradient):
    gathered = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, gradient.contiguous())
    return all(torch.allclose(one, gathered[0]) for one in gathered)


dist.init_process_group("gloo")
torch.set_num_threads(1)
DATA = torch.Generator().manual_seed(dist.get_rank())
main()
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may still hold tensors: torch aborts when they release them while the interpreter ends
