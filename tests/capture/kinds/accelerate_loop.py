"""A plain loop over accelerate.Accelerator with gradient accumulation. Alone, or started by torchrun."""

import argparse

import ending
import torch
import torch.distributed as dist
import weights
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(1024, 16), torch.randint(0, 4, (1024,)))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

micro = 0
while micro < args.steps * args.accumulate:
    for features, labels in loader:
        if micro % args.accumulate == 0:
            ending.at(micro // args.accumulate + 1)
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        micro += 1
        if micro == args.steps * args.accumulate:
            break

if accelerator.is_main_process:
    weights.show(model.parameters())
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
