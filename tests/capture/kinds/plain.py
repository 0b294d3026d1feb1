"""One process, one optimizer."""

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

for step in range(1, args.steps + 1):
    ending.at(step)
    features, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))
    loss = nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

weights.show(model.parameters())
