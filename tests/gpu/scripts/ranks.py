"""Train a small transformer on several ranks, each on the same card where there is one: DDP or FSDP2.

torchrun --nproc-per-node 2 ranks.py --backend gloo --bucket-mb 1
torchrun --nproc-per-node 2 ranks.py --backend nccl --strategy fsdp
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from turn import wait_for_turn


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    options.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--width", type=int, default=512)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--bucket-mb", type=float, default=25.0)
    options.add_argument("--accumulate", type=int, default=1)
    options.add_argument("--no-sync", action="store_true", help="all-reduce on the last micro-batch only")
    args = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # makes the context, which takes a second, before the turn
    if os.environ.get("RANK", "0") == "0":
        wait_for_turn()  # the other rank waits for this one to join
    dist.init_process_group(args.backend)
    layer = nn.TransformerEncoderLayer(args.width, 8, 4 * args.width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False).to(device)
    if args.strategy == "fsdp":
        mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator(device).manual_seed(int(os.environ.get("RANK", "0")))
    for _ in range(args.steps):
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            quiet = args.no_sync and not last and args.strategy == "ddp"
            with model.no_sync() if quiet else contextlib.nullcontext():
                batch = torch.randn(args.batch, args.tokens, args.width, device=device, generator=generator)
                model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
