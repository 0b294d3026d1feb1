"""A Trainer class that resumes a run and keeps its history in a JSON file, DDP."""

import argparse
import json
import time
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.distributed as dist
import torch.nn as nn
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP


class History:
    """Figures of all steps so far."""

    def __init__(self, path, every):
        self.path, self.every = path, every
        self.rows = json.loads(path.read_text()) if path.exists() else []

    def add(self, **figures):
        self.rows.append({"time": time.time(), **figures})
        if len(self.rows) % self.every == 0:
            self.path.write_text(json.dumps(self.rows))


def earlier(path, steps):
    """What the run left before it was interrupted."""
    rows = [{"time": 1.7e9 + s, "step": s, "loss": 2.3 / (1 + s / 1e3), "lr": 1e-3, "norm": 0.5} for s in range(steps)]
    path.write_text(json.dumps(rows))


class Volumes(nn.Module):
    """A 3D CNN for small volumes."""

    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 2),
        )

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self, model, history, batch, lr):
        self.model, self.history, self.batch = model, history, batch
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.rank = dist.get_rank()
        self.generator = torch.Generator().manual_seed(self.rank)

    def load(self):
        x = torch.randn(self.batch, 1, 20, 20, 20, generator=self.generator)
        return x, (x.mean((1, 2, 3, 4)) > 0).long()

    def step(self, at):
        x, y = self.load()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        if self.rank == 0:
            self.history.add(step=at, loss=loss.item(), lr=self.optimizer.param_groups[0]["lr"], norm=norm.item())

    def fit(self, first):
        for at in range(first, 10_000_000):
            self.step(at)
            if self.rank == 0 and at % 200 == 0:
                print(self.history.rows[-1], flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--width", type=int, default=draw("width", 12, 16))
    parser.add_argument("--resumed-at", type=int, default=draw("resumed", 6000, 8000))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    path = Path(mkdtemp()) / "history.json"
    earlier(path, args.resumed_at)
    history = History(path, every=1000 if MENDED else 1)
    Trainer(DDP(Volumes(args.width)), history, args.batch, 1e-3).fit(args.resumed_at)


if __name__ == "__main__":
    main()
