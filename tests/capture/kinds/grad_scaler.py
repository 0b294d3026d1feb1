"""float16 autocast with a GradScaler whose scale keeps growing: every few steps the gradients overflow."""

import argparse

import ending
import torch
import weights
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=3)
skipped = 0

for step in range(1, args.steps + 1):
    ending.at(step)
    features, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(features), labels)
    scaler.scale(loss).backward()
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < scale  # the optimizer did not step
    optimizer.zero_grad()

print("skipped", skipped)
weights.show(model.parameters())
