"""What the benchmarks record: a training script that times its own steps and prints them as its last line, as JSON.

python workload.py --steps 120                             one process
torchrun --standalone --nproc-per-node 2 workload.py       the same over gloo
"""

import argparse
import json
import os
import resource
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--batch", type=int, default=16)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
rank = int(os.environ.get("RANK", "0"))
encoder = nn.TransformerEncoderLayer(args.width, 4, 2 * args.width, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(encoder, args.layers)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch = torch.randn(args.batch, 8, args.width)

durations_ns, cpu_ns = [], []
for _ in range(args.steps):
    began, computed = time.perf_counter_ns(), time.process_time_ns()
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    durations_ns.append(time.perf_counter_ns() - began)
    cpu_ns.append(time.process_time_ns() - computed)

if rank == 0:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"durations_ns": durations_ns, "cpu_ns": cpu_ns, "peak_bytes": peak}))
if "RANK" in os.environ:
    dist.barrier()
    dist.destroy_process_group()
