"""Configured by hydra: arguments are `key=value`; with `hydra.job.chdir=True` each job works in a folder of its own."""

from dataclasses import dataclass

import ending
import hydra
import torch
import weights
from hydra.core.config_store import ConfigStore
from torch import nn


@dataclass
class Config:
    steps: int = 60
    lr: float = 1e-2


ConfigStore.instance().store(name="train", node=Config)


@hydra.main(version_base=None, config_name="train")
def main(config):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    for step in range(1, config.steps + 1):
        ending.at(step)
        loss = nn.functional.cross_entropy(model(torch.randn(32, 16)), torch.randint(0, 4, (32,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights.show(model.parameters())


if __name__ == "__main__":
    main()
