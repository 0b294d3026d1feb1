"""Train a small transformer on several ranks, each on the same card where there is one: DDP or FSDP2.

torchrun --nproc-per-node 2 ranks.py --backend gloo --bucket-mb 1
torchrun --nproc-per-node 2 ranks.py --backend nccl --strategy fsdp
"""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from turn import wait_for_turn


def parser():
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    options.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--width", type=int, default=512)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    options.add_argument("--optimizer", choices=("foreach", "fused", "loop"), default="foreach")
    options.add_argument("--accumulate", type=int, default=1)
    options.add_argument("--no-sync", action="store_true", help="reduce gradients on the last micro-batch only")
    options.add_argument("--late-ms", type=float, default=0.0, help="time that rank 1 sleeps in every step")
    options.add_argument("--late-compute", type=int, default=0, help="further matrix products of rank 1 in every step")
    options.add_argument("--bucket-mb", type=float, default=25.0)
    options.add_argument("--hook", choices=("none", "bf16"), default="none", help="DDP's communication hook")
    options.add_argument("--bucket-view", action="store_true")
    options.add_argument("--static-graph", action="store_true")
    options.add_argument("--find-unused", action="store_true")
    options.add_argument("--unit", type=int, default=1, help="layers of an FSDP unit; 0: one unit for the whole model")
    options.add_argument("--keep", action="store_true", help="FSDP keeps parameters gathered until backward is over")
    options.add_argument("--prefetch", type=int, default=0, help="units that FSDP gathers ahead, by explicit prefetch")
    options.add_argument("--reduce-bf16", action="store_true", help="FSDP reduces gradients in bf16")
    return options


class Training:
    """Model and optimizer by the options; `step()` is one optimizer step. Needs the process group."""

    def __init__(self, args):
        torch.manual_seed(0)
        self.args = args
        self.rank = dist.get_rank()
        self.device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
        torch.set_float32_matmul_precision("high" if args.precision == "tf32" else "highest")
        layer = nn.TransformerEncoderLayer(args.width, 8, 4 * args.width, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False).to(self.device)
        self.model = _sharded(args, model) if args.strategy == "fsdp" else _replicated(args, model)
        choice = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False, "fused": False}}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **choice[args.optimizer])
        self.generator = torch.Generator(self.device).manual_seed(self.rank)
        self.extra = torch.randn(4096, 4096, device=self.device) if args.late_compute else None

    def step(self):
        args = self.args
        for micro in range(args.accumulate):
            quiet = args.no_sync and micro < args.accumulate - 1
            if args.strategy == "fsdp":
                self.model.set_requires_gradient_sync(not quiet)
            with self.model.no_sync() if quiet and args.strategy == "ddp" else contextlib.nullcontext():
                shape = (args.batch, args.tokens, args.width)
                batch = torch.randn(*shape, device=self.device, generator=self.generator)
                if self.rank == 1 and args.late_ms:
                    time.sleep(args.late_ms / 1e3)
                if self.rank == 1:
                    for _ in range(args.late_compute):
                        self.extra @ self.extra
                with self.autocast():
                    loss = self.model(batch).square().mean()
                loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def autocast(self):
        enabled = self.args.precision == "bf16" and self.args.strategy == "ddp"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)


def _replicated(args, model):
    flags = {"gradient_as_bucket_view": args.bucket_view, "static_graph": args.static_graph}
    found = DistributedDataParallel(
        model, bucket_cap_mb=args.bucket_mb, find_unused_parameters=args.find_unused, **flags
    )
    if args.hook == "bf16":
        found.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return found


def _sharded(args, model):
    mesh = dist.init_device_mesh(args.device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if args.precision == "bf16" else None,
        reduce_dtype=torch.bfloat16 if args.reduce_bf16 else torch.float32 if args.precision == "bf16" else None,
    )
    how = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": not args.keep}
    layers = list(model.layers)
    units = [layers[first : first + args.unit] for first in range(0, len(layers), args.unit)] if args.unit else []
    for unit in units:
        fully_shard(unit if len(unit) > 1 else unit[0], **how)
    fully_shard(model, **how)
    firsts = [unit[0] for unit in units]
    if args.prefetch:
        for number, first in enumerate(firsts):
            first.set_modules_to_forward_prefetch(firsts[number + 1 : number + 1 + args.prefetch])
            first.set_modules_to_backward_prefetch(firsts[max(0, number - args.prefetch) : number][::-1])
    return model


def join(device, backend):
    """The card's context, the turn and the process group; the other ranks wait for the one that waits its turn."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")  # makes the context, which takes a second, before the turn
    if os.environ.get("RANK", "0") == "0":
        wait_for_turn()
    dist.init_process_group(backend)


def main():
    args = parser().parse_args()
    join(args.device, args.backend)
    training = Training(args)
    for _ in range(args.steps):
        training.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
