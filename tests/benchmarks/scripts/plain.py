"""A training loop as many write it: everything in one function."""

import contextlib

import parts
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    parts.begin()
    model = parts.model()
    if parts.WORLD > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model, **parts.ddp_options())
    optimizer = parts.optimizer(model.parameters())
    loader = parts.loader()
    accumulate = parts.micro_batches()
    feeds = parts.has("rank-0-feeds")
    size = (parts.batch_size(), *parts.shape())

    for epoch in range(3):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        batches = iter(loader) if not feeds or parts.RANK == 0 else None
        for micro in range(parts.STEPS):
            if feeds:  # one process reads, for all
                batch = next(batches) if parts.RANK == 0 else torch.empty(size)
                dist.broadcast(batch, src=0)
            else:
                batch = next(batches)
            batch = parts.before_forward(batch)
            last = (micro + 1) % accumulate == 0
            quiet = "no-no-sync" in parts.MENDED and not last
            with model.no_sync() if quiet else contextlib.nullcontext():
                loss = parts.objective(model(batch)) / accumulate
                loss.backward()
            if not last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            parts.after_step()
            if parts.has("gathers"):
                parts.gather({"loss": loss.item(), "rank": parts.RANK, "epoch": epoch})
    if parts.WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
