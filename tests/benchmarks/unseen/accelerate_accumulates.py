"""Accelerate with gradients accumulated over several small batches."""

import argparse
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, count, length, features):
        generator = torch.Generator().manual_seed(8)
        self.x = torch.randn(count, length, features, generator=generator)
        self.y = self.x.mean((1, 2))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Forecaster(nn.Module):
    """Wide mixing layers over time and features."""

    def __init__(self, length, features, hidden):
        super().__init__()
        self.enter = nn.Linear(length * features, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3))
        self.leave = nn.Linear(hidden, 1)

    def forward(self, x):
        x = F.gelu(self.enter(x.flatten(1)))
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return self.leave(x).squeeze(-1)


def quiet(accelerator, model, last):
    """What the backward pass of a micro-batch runs in."""
    return accelerator.no_sync(model) if MENDED and not last else contextlib.nullcontext()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=draw("accumulate", 4, 6))
    parser.add_argument("--batch", type=int, default=draw("batch", 48, 64))
    parser.add_argument("--hidden", type=int, default=draw("hidden", 896, 1024))
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Forecaster(24, 16, args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loader = DataLoader(Sequences(8192, 24, 16), batch_size=args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(10_000):
        total = torch.zeros(())
        for at, (x, y) in enumerate(loader, 1):
            last = at % args.accumulate == 0
            with quiet(accelerator, model, last):
                loss = F.mse_loss(model(x), y)
                accelerator.backward(loss / args.accumulate)
            total += loss.detach()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {total.item() / len(loader):.5f}")


if __name__ == "__main__":
    main()
