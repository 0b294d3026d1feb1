"""A Trainer class for several text tasks with one encoder and uncertainty weighting, DDP."""

import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
from drawn import draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TASKS = {"topic": 12, "tone": 3, "language": 6}


@dataclass
class Config:
    vocabulary: int = 2500
    length: int = 32
    dim: int = draw("dim", 112, 128)
    layers: int = 2
    batch: int = draw("batch", 14, 18)
    lr: float = 5e-4
    steps: int = 1_000_000
    log_every: int = 100


class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.dim)
        layer = nn.TransformerEncoderLayer(config.dim, 4, 4 * config.dim, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.embed(ids)).mean(1)


class MultiTask(nn.Module):
    """Returns the loss itself, so that everything is inside of the wrapper."""

    def __init__(self, config):
        super().__init__()
        self.encoder = Encoder(config)
        self.heads = nn.ModuleDict({task: nn.Linear(config.dim, count) for task, count in TASKS.items()})
        self.log_variance = nn.ParameterDict({task: nn.Parameter(torch.zeros(())) for task in TASKS})

    def forward(self, ids, labels):
        shared = self.encoder(ids)
        losses = {}
        for task, head in self.heads.items():
            loss = nn.functional.cross_entropy(head(shared), labels[task])
            losses[task] = (-self.log_variance[task]).exp() * loss + self.log_variance[task]
        return sum(losses.values()), {task: loss.detach() for task, loss in losses.items()}


class Trainer:
    def __init__(self, config):
        self.config = config
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(MultiTask(config))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)
        self.generator = torch.Generator().manual_seed(self.rank)

    def batch(self):
        size = (self.config.batch, self.config.length)
        ids = torch.randint(0, self.config.vocabulary, size, generator=self.generator)
        return ids, {task: ids[:, at] % count for at, (task, count) in enumerate(TASKS.items())}

    def fit(self):
        for step in range(self.config.steps):
            loss, parts = self.model(*self.batch())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % self.config.log_every == 0 and self.rank == 0:
                told = " ".join(f"{task} {part.item():.3f}" for task, part in parts.items())
                print(f"step {step}: {told}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    try:
        Trainer(Config()).fit()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
