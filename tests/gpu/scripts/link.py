"""DDP of one rank whose communication hook holds a stream for alpha + bytes / beta: real buckets, a known link.

torchrun --nproc-per-node 1 link.py --bucket-mb 25
torchrun --nproc-per-node 1 link.py --sizes 1,5,25,100     prints the median step of each size as JSON
"""

import argparse
import json
import time
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist
from known import cycles_per_ms
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from turn import wait_for_turn


def link_of(args, device, batch):
    """A communication hook that holds a stream of its own for alpha + bytes / beta, and how long it has: (ms as set,
    event, event) of each bucket."""
    stream, rate, held = None, 0.0, []
    if device.type == "cuda":
        stream, weight, here = torch.cuda.Stream(device), torch.randn(args.width, args.width, device=device), device

        def busy():
            with torch.cuda.stream(torch.cuda.default_stream(here)):
                for _ in range(100):  # outlast the spinning kernel: the clock is lower while the card multiplies
                    batch @ weight

        with torch.cuda.stream(stream):
            rate = cycles_per_ms(device, busy)

    def link(state, bucket):
        gradients = bucket.buffer()
        ms = args.alpha_us / 1e3 + gradients.numel() * gradients.element_size() / (args.gb_per_s * 1e6)
        if stream is None:
            future = torch.futures.Future()
            time.sleep(ms / 1e3)
            future.set_result(gradients)
            return future
        future = torch.futures.Future(devices=[device])
        stream.wait_stream(torch.cuda.current_stream())
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream), torch.profiler.record_function("known_link:all_reduce"):
            begin.record()
            torch.cuda._sleep(int(ms * rate))
            end.record()
            future.set_result(gradients)
        held.append((ms, begin, end))
        return future

    return link, held


def held_over_set(held):
    """How long the link was held, as a multiple of what was set; 1 where the card's clock stayed as calibrated."""
    if not held:
        return None
    torch.cuda.synchronize()
    return sum(begin.elapsed_time(end) for _, begin, end in held) / sum(ms for ms, _, _ in held)


def built(args, device, link, bucket_mb):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(args.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=bucket_mb)
    model.register_comm_hook(None, link)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def steps(model, optimizer, batch, count):
    marks = []
    for number in range(count + 1):
        marks.append(torch.cuda.Event(enable_timing=True) if batch.is_cuda else time.perf_counter() * 1e3)
        if batch.is_cuda:
            marks[-1].record()
        if number < count:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if not batch.is_cuda:
        return [later - earlier for earlier, later in pairwise(marks)]
    torch.cuda.synchronize()
    return [earlier.elapsed_time(later) for earlier, later in pairwise(marks)]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--bucket-mb", type=float, default=25.0)
    options.add_argument("--sizes", help="bucket sizes in MiB, each timed by itself")
    options.add_argument("--alpha-us", type=float, default=50.0)
    options.add_argument("--gb-per-s", type=float, default=20.0)
    options.add_argument("--batch", type=int, default=16384)
    options.add_argument("--width", type=int, default=1024)
    options.add_argument("--layers", type=int, default=24)
    options.add_argument("--steps", type=int, default=200)
    args = options.parse_args()
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    wait_for_turn()
    batch = torch.randn(args.batch, args.width, device=device)
    link, held = link_of(args, device, batch)
    if args.sizes is None:
        steps(*built(args, device, link, args.bucket_mb), batch, args.steps)
    else:
        found, ratios = {}, {}
        for _ in range(2):
            for size in args.sizes.split(","):
                held.clear()
                times = steps(*built(args, device, link, float(size)), batch, args.steps)
                found.setdefault(size, []).append(median(times[5:]))
                ratios.setdefault(size, []).append(held_over_set(held))
                print(json.dumps({"medians_ms": found, "held_over_set": ratios}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
