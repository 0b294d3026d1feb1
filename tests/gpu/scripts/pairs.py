"""Time variants of ranks.py in turn, in the processes of one torchrun, and trace each once with torch.profiler alone.

    torchrun --nproc-per-node 2 pairs.py --traces folder '{"base": [], "bucket 1": ["--bucket-mb", "1"]}'

Rank 0 prints the median step of each round and rank as JSON. Traces lie in folder/pairs-NAME/rank-N.json.gz:
what someone else's recording looks like, of a script and of the same script with one change.
"""

import argparse
import gc
import gzip
import json
import shutil
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from ranks import Training, join
from ranks import parser as variant_parser
from torch.profiler import ProfilerActivity, profile, schedule
from train import timed


def traced(training, target, steps):
    """Write a trace of that many steps, after one that starts the profiler."""
    target.parent.mkdir(parents=True, exist_ok=True)
    plain = target.with_suffix("")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if training.device.type == "cuda" else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda found: found.export_chrome_trace(str(plain)),  # the next cycle would clear the events
        record_shapes=True,
    ) as running:
        for _ in range(steps + 1):
            training.step()
            running.step()
    with plain.open("rb") as source, gzip.open(target, "wb", compresslevel=6) as sink:
        shutil.copyfileobj(source, sink)
    plain.unlink()


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--device", required=True)
    options.add_argument("--backend", required=True)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--warmup", type=int, default=5)
    options.add_argument("--steps", type=int, default=15)
    options.add_argument("--traced", type=int, default=4, help="steps in a trace")
    options.add_argument("--traces", type=Path, help="folder for the traces (default: none)")
    options.add_argument("variants", type=json.loads)
    args = options.parse_args()
    join(args.device, args.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = {name: [] for name in args.variants}
    for number in range(args.rounds):
        for name, words in args.variants.items():
            how = variant_parser().parse_args(["--device", args.device, "--backend", args.backend, *words])
            training = Training(how)
            mine = median(timed(training, args.warmup, args.steps))
            everyones = [None] * ranks
            dist.all_gather_object(everyones, mine)
            found[name].append(everyones)
            if args.traces is not None and number == 0:
                traced(training, args.traces / f"pairs-{name.replace(' ', '-')}" / f"rank-{rank}.json.gz", args.traced)
            training = None
            gc.collect()
            if args.device == "cuda":
                torch.cuda.empty_cache()
            dist.barrier()
            if rank == 0:
                print(json.dumps({"medians_ms": found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
