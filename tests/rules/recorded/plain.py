"""Record plain/: traces of torch.profiler alone, without dptune, of two ranks over gloo on the CPU of one machine.

    python -m tests.rules.recorded.plain [FAULT ...]      all, or these, each with its mended form

What dptune says of them is tested in test_plain_traces.py. Another process on the machine does no harm: rules are
tested on them that judge order and sizes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

PLAIN = Path(__file__).parent / "plain"
FAULTS = ("gradients-after-backward", "small-shard-units")
WARMUP, STEPS = 2, 4


def layers(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(part for _ in range(count) for part in (nn.Linear(width, width), nn.ReLU())))


def average(model: nn.Module) -> None:
    """All gradients in one call, after the backward pass."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    averages = torch._utils._unflatten_dense_tensors(flat.div_(dist.get_world_size()), gradients)
    torch._foreach_copy_(gradients, averages)


def built(fault: str, mended: bool) -> nn.Module:
    if fault == "gradients-after-backward":
        model = layers(384, 8)
        return DistributedDataParallel(model) if mended else model
    model = nn.Sequential(*(layers(256, 5) for _ in range(2)))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for part in model if mended else [part for part in model.modules() if isinstance(part, nn.Linear)]:
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(fault: str, mended: bool, target: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = built(fault, mended)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = torch.randn(512, next(model.parameters()).shape[-1])
    steps = schedule(wait=0, warmup=WARMUP, active=STEPS)
    file = str(target / f"rank-{dist.get_rank()}.json.gz")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=steps,
        record_shapes=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(file),
    ) as profiler:
        for _ in range(WARMUP + STEPS):
            model(batch).square().mean().backward()
            if fault == "gradients-after-backward" and not mended:
                average(model)
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


def main() -> None:
    """Record the faults named, or all; with RANK, train."""
    if "RANK" in os.environ:
        train(sys.argv[1], sys.argv[2] == "mended", Path(sys.argv[3]))
        return
    for fault in [fault for fault in FAULTS if fault in sys.argv[1:] or not sys.argv[1:]]:
        for form in ("fault", "mended"):
            target = PLAIN / (f"{fault}-mended" if form == "mended" else fault)
            target.mkdir(parents=True, exist_ok=True)
            env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29747"}
            words = [sys.executable, "-m", "tests.rules.recorded.plain", fault, form, str(target)]
            ranks = [subprocess.Popen(words, env={**env, "RANK": str(rank)}) for rank in range(2)]
            if any(rank.wait() for rank in ranks):
                raise SystemExit(f"{fault} ({form}) failed")


if __name__ == "__main__":
    main()
