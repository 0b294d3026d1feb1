"""deepspeed.initialize on the CPU over gloo, with accumulation. Started by torchrun, with DS_ACCELERATOR=cpu."""

import argparse
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import ending
import torch
import torch.distributed as dist
import weights
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--stage", type=int, default=0, choices=[0, 1, 2])
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args()

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": args.accumulate,
    "zero_optimization": {"stage": args.stage},
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

torch.manual_seed(dist.get_rank())
for step in range(1, args.steps + 1):
    ending.at(step)
    for _ in range(args.accumulate):
        features, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
        loss = nn.functional.cross_entropy(engine(features), labels)
        engine.backward(loss)
        engine.step()

if dist.get_rank() == 0:
    weights.show(model.parameters())
dist.barrier()
dist.destroy_process_group()
