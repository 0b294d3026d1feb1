"""A Trainer class for a tabular autoencoder, distributed, many short epochs."""

import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class Config:
    rows: int = 1600
    features: int = 96
    hidden: int = draw("hidden", 768, 896)
    batch: int = draw("batch", 80, 100)
    epochs: int = 100_000
    lr: float = 1e-3


class Autoencoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(config.features, config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.hidden), nn.ReLU()
        )
        self.code = nn.Linear(config.hidden, 16)
        self.decode = nn.Sequential(
            nn.Linear(16, config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.hidden), nn.ReLU()
        )
        self.out = nn.Linear(config.hidden, config.features)

    def forward(self, x):
        return self.out(self.decode(self.code(self.encode(x))))


class Trainer:
    def __init__(self, config):
        self.config = config
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(Autoencoder(config))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.lr, momentum=0.9)
        rows = torch.randn(config.rows, config.features, generator=torch.Generator().manual_seed(0))
        self.sampler = DistributedSampler(TensorDataset(rows), shuffle=True, drop_last=True)
        self.loader = DataLoader(TensorDataset(rows), config.batch, sampler=self.sampler, drop_last=True)

    def step(self, x):
        noisy = x + 0.1 * torch.randn_like(x)
        loss = nn.functional.mse_loss(self.model(noisy), x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run_epoch(self, epoch):
        if MENDED:
            self.sampler.set_epoch(epoch)
        losses = [self.step(x) for (x,) in self.loader]
        return torch.stack(losses).mean().item()

    def fit(self):
        for epoch in range(self.config.epochs):
            loss = self.run_epoch(epoch)
            if self.rank == 0 and epoch % 20 == 0:
                print(f"epoch {epoch}: {loss:.5f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    Trainer(Config()).fit()


if __name__ == "__main__":
    main()
