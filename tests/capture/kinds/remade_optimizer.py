"""A new optimizer object for every step, to change the learning rate."""

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

for step in range(1, args.steps + 1):
    ending.at(step)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / step)
    loss = nn.functional.cross_entropy(model(torch.randn(32, 16)), torch.randint(0, 4, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

weights.show(model.parameters())
